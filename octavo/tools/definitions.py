"""What a request may call: tools, and the choice among them. Validated once, at construction.

Plain values; knows no wire format, no template and no grammar.
"""

import dataclasses
import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from octavo.core.refusals import bad, short

# Bounds of one request, OpenAI's where it states them.
MAX_TOOLS = 128
MAX_NAME_CHARS = 64
MAX_DESCRIPTION_CHARS = 16_384
MAX_SCHEMA_BYTES = 1 << 16  # of one tool; all together share the bound of a grammar

_NAME = re.compile(r"[a-zA-Z0-9_.-]+")

GrammarSyntax = Literal["lark", "regex"]


@dataclasses.dataclass(slots=True, frozen=True)
class Tool:
    """Something the model may call.

    Attributes:
        name: 1 to 64 of letters, digits, `_`, `-` and `.`.
        parameters: the JSON Schema of the arguments object, as given; {} where there are none.
        strict: every keyword of the schema is enforced, and one that cannot be is refused;
            otherwise such keywords are left out.
        is_custom: takes a text, not an object. syntax, definition: the grammar of that text; None
            where it is free.
        field: how errors name it, as `tools[2]`.
    """

    name: str
    description: str = ""
    parameters: dict[str, Any] = dataclasses.field(default_factory=dict)
    strict: bool = False
    is_custom: bool = False
    syntax: GrammarSyntax | None = None
    definition: str = ""
    field: str = "tools"


@dataclasses.dataclass(slots=True, frozen=True)
class ToolChoice:
    """What the model must do with the tools.

    Attributes:
        mode: "none" (no calls), "auto" (its own choice) or "required" (at least one call).
        names: the tools it may call; None means every one.
        parallel: more than one call in an answer.
    """

    mode: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] | None = None
    parallel: bool = True

    def among(self, tools: Sequence[Tool]) -> tuple[Tool, ...]:
        """The tools that may be called, in their order."""
        if self.mode == "none":
            return ()
        return tuple(t for t in tools if self.names is None or t.name in self.names)


def function_tool(function: Any, field: str) -> Tool:
    """A function from {name, description, parameters, strict}. Raises InvalidRequestError naming
    the place below `field`."""
    _object(function, field)
    schema = function.get("parameters")
    where = f"{field}.parameters"
    if schema is None:
        schema = {}
    if not isinstance(schema, dict):
        raise bad(where, f"is a {_kind(schema)}: give a JSON Schema of an object")
    if schema.get("type", "object") != "object":
        raise bad(f"{where}.type", f"is {short(schema['type'])}: arguments are an 'object'")
    try:
        size = len(json.dumps(schema, ensure_ascii=False).encode())
    except (UnicodeEncodeError, RecursionError, ValueError):
        raise bad(where, "is not usable JSON") from None
    if size > MAX_SCHEMA_BYTES:
        raise bad(where, f"has {size} bytes, and may have {MAX_SCHEMA_BYTES}")
    strict = function.get("strict")
    if not isinstance(strict, (bool, type(None))):
        raise bad(f"{field}.strict", f"is {short(strict)}: give true or false")
    return Tool(_name(function, field), _description(function, field), schema,
                strict=bool(strict), field=field)


def custom_tool(custom: Any, field: str) -> Tool:
    """A custom tool from {name, description, format}. Raises as function_tool."""
    _object(custom, field)
    name, description = _name(custom, field), _description(custom, field)
    form = custom.get("format")
    where = f"{field}.format"
    if form is None or form == {"type": "text"}:
        return Tool(name, description, is_custom=True, field=field)
    _object(form, where)
    if form.get("type") != "grammar":
        raise bad(f"{where}.type", f"is {short(form.get('type'))}: give 'text' or 'grammar'")
    # chat completions nest the grammar, responses do not
    grammar = form.get("grammar", form)
    _object(grammar, f"{where}.grammar")
    syntax, definition = grammar.get("syntax"), grammar.get("definition")
    if syntax not in ("lark", "regex"):
        raise bad(f"{where}.grammar.syntax", f"is {short(syntax)}: give 'lark' or 'regex'")
    if not isinstance(definition, str) or not definition.strip():
        raise bad(f"{where}.grammar.definition", f"is {short(definition)}: give the grammar")
    if len(definition) > MAX_SCHEMA_BYTES:
        raise bad(f"{where}.grammar.definition", f"has {len(definition)} characters, and may "
                   f"have {MAX_SCHEMA_BYTES}")
    return Tool(name, description, is_custom=True, syntax=syntax, definition=definition,
                field=field)


def check_tools(tools: Sequence[Tool], *, field: str = "tools") -> None:
    """Raises InvalidRequestError: too many, or two of one name."""
    if len(tools) > MAX_TOOLS:
        raise bad(field, f"has {len(tools)} entries, and may have {MAX_TOOLS}")
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            raise bad(f"{tool.field}.name", f"is {tool.name!r}, which another tool has, too: "
                       "give each its own")
        seen.add(tool.name)


def check_choice(choice: ToolChoice, tools: Sequence[Tool], *, field: str = "tool_choice") -> None:
    """Raises InvalidRequestError: a call is asked for and there is nothing to call, or a name is
    no tool's."""
    if choice.mode == "required" and not tools:
        raise bad(field, "asks for a call, but there are no tools: give tools, or leave it out")
    known = {tool.name for tool in tools}
    for name in choice.names or ():
        if name not in known:
            raise bad(field, f"names {short(name)}, which is not among the tools"
                       + (f": {', '.join(sorted(known))[:200]}" if known else ""))


def _name(given: dict[str, Any], field: str) -> str:
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise bad(f"{field}.name", "is missing: give the tool a name" if name is None
                   else f"is {short(name)}: give a text")
    if len(name) > MAX_NAME_CHARS or _NAME.fullmatch(name) is None:
        raise bad(f"{field}.name", f"is {short(name)}: give 1 to {MAX_NAME_CHARS} letters, "
                   "digits, '_', '-' or '.'")
    return name


def _description(given: dict[str, Any], field: str) -> str:
    text = given.get("description")
    if text is None:
        return ""
    if not isinstance(text, str):
        raise bad(f"{field}.description", f"is a {_kind(text)}: give a text")
    if len(text) > MAX_DESCRIPTION_CHARS:
        raise bad(f"{field}.description", f"has {len(text)} characters, and may have "
                   f"{MAX_DESCRIPTION_CHARS}")
    return text


def _object(value: Any, field: str) -> None:
    if not isinstance(value, dict):
        raise bad(field, "is missing: give an object" if value is None
                   else f"is a {_kind(value)}: give an object")


def _kind(value: object) -> str:
    return type(value).__name__
