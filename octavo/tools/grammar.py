"""Tools, reasoning and a wanted form -> one Lark grammar for the whole output.

    start: think? (text | text-until-marker calls | calls | wanted form)

In "auto" the text is free until a marker has come; from there on the call is held to its schema.
Writes the dialect of llguidance (docs/syntax.md there); compiles nothing.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from octavo.core.json_schema import UnsupportedSchemaError, enforceable
from octavo.core.structured_outputs import StructuredOutputs
from octavo.tools.definitions import Tool, ToolChoice
from octavo.tools.formats import (
    CUSTOM_CLOSE,
    CUSTOM_NAME_END,
    CUSTOM_OPEN,
    ReasoningFormat,
    ToolFormat,
)
from octavo.tools.python_grammar import BEGINS_A_CALL, PythonRules
from octavo.tools.xml_grammar import XmlRules

# Calls in one answer: a model that repeats itself must end some time.
MAX_CALLS = 32

# Names the control token of a text, as `<[151657]>`; None where the text is ordinary text.
ControlToken = Callable[[str], str | None]

# the spelling that chat templates print calls in, so that models write it, too
_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ODD_PATTERN = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")
# keys beside which "no further properties" would change what the schema means
_OPEN_ENDED = ("additionalProperties", "unevaluatedProperties", "patternProperties", "$ref",
               "anyOf", "oneOf", "allOf", "not", "if")


def output_grammar(*, form: ToolFormat | None, tools: Sequence[Tool], choice: ToolChoice,
                   reasoning: ReasoningFormat | None, prompt: str,
                   wanted: StructuredOutputs | None, control_token: ControlToken
                   ) -> StructuredOutputs | None:
    """The grammar of an output; None where nothing is asked of it.

    tools: those that may be called. prompt: the text it continues. wanted: the form of the
    content, which calls need not have.
    """
    callable_tools = choice.among(tools) if form is not None else ()
    if reasoning is not None and reasoning.is_over(prompt):
        reasoning = None
    if not callable_tools and (wanted is None or reasoning is None):
        return wanted
    writer = _Writer(control_token)
    if form is None or not callable_tools:
        assert wanted is not None
        answer = writer.content(wanted)
    elif choice.mode == "required":
        answer = writer.forced_calls(form, callable_tools, choice)
    else:
        answer = writer.free_calls(form, callable_tools, choice, wanted)
    start = answer if reasoning is None else f"{writer.think(reasoning, prompt)} {answer}"
    field = "tools" if callable_tools else wanted.field if wanted is not None else "tools"
    return StructuredOutputs(grammar=writer.text(start), field=field)


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """The schema that a tool's arguments are held to.

    They are an object. Properties that a tool does not declare are not written, unless its schema
    says more about them.
    """
    schema = {k: v for k, v in tool.parameters.items() if k != "x-guidance"}
    schema.setdefault("type", "object")
    if not any(key in schema for key in _OPEN_ENDED):
        schema["additionalProperties"] = False
    if tool.strict:
        return schema | {"x-guidance": _WRITTEN}
    options = {**_WRITTEN, "lenient": True, "coerce_one_of": True}
    return _without_odd_patterns(schema) | {"x-guidance": options}


def _without_odd_patterns(schema: Any) -> Any:
    """A schema without patterns that no grammar can follow: with look-around or back-references."""
    if isinstance(schema, list):
        return [_without_odd_patterns(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _without_odd_patterns(value) for key, value in schema.items()
            if not (key == "pattern" and isinstance(value, str) and _ODD_PATTERN.search(value))}


class _Writer:
    """Collects the rules of one grammar; methods return what stands for them in a rule."""

    def __init__(self, control_token: ControlToken) -> None:
        self._control_token = control_token
        self._rules: list[str] = []
        self._xml = XmlRules(self._rule, _json_value)
        self._python = PythonRules(self._rule, _json_value)

    def text(self, start: str) -> str:
        """The grammar."""
        # the first line keeps it from being taken for another dialect
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules, ""])

    def think(self, reasoning: ReasoningFormat, prompt: str) -> str:
        """Reasoning up to its end: there already where the prompt has opened it, else allowed."""
        self._until("think_rest", reasoning.close)
        self._rule("think_end", "think_rest BLANK?")
        self._rule("BLANK", r"/[ \t\r\n]+/")
        if reasoning.begins_inside(prompt):
            return "think_end"
        self._rule("think", f"{self._marker(reasoning.open)} think_end")
        return "think?"

    def content(self, wanted: StructuredOutputs) -> str:
        """The form a structured output asks for."""
        kind, text, whitespace = wanted.key
        if kind == "json":
            schema = json.loads(text)
            options = ({"whitespace_pattern": whitespace} if whitespace
                       else {"whitespace_flexible": False})
            schema["x-guidance"] = options | schema.get("x-guidance", {})
            self._rule("content", _json(schema))
        elif kind == "regex":
            self._rule("content", _regex(text))
        elif kind == "choice":
            self._rule("content", "CHOICE")
            self._rule("CHOICE", " | ".join(map(_quoted, json.loads(text))))
        else:
            self._rule("content", _nested(text))
        return "content"

    def forced_calls(self, form: ToolFormat, tools: Sequence[Tool], choice: ToolChoice) -> str:
        """Calls from the start."""
        self._calls(form, tools, choice)
        opened = f"{self._marker(form.open)} calls" if form.open else "calls"
        optional = self._control_token(form.optional_open) if form.optional_open else None
        return f"{optional}? {opened}" if optional else opened

    def free_calls(self, form: ToolFormat, tools: Sequence[Tool], choice: ToolChoice,
                   wanted: StructuredOutputs | None) -> str:
        """Content or calls, whichever the model begins."""
        calls = self.forced_calls(form, tools, choice)
        if wanted is not None:
            self._rule("answer", f"{self.content(wanted)} | {calls}")
            return "answer"
        if form.only_at_start:
            begin = rf'[ \t\r\n]*(\[[ \t\r\n]*)?\{{[ \t\r\n]*"name"|[ \t\r\n]*{CUSTOM_OPEN}'
            if form.style == "python":
                begin = rf"{BEGINS_A_CALL}|[ \t\r\n]*\[?{CUSTOM_OPEN}"
            self._rule("TEXT", rf"/(?s:.*)/ & ~/(?s:({_slashed(begin)}).*)/")
            self._rule("answer", f"TEXT | {calls}")
            return "answer"
        self._until("lead", form.open)
        if self._control_token(form.open) is None:
            self._rule("TEXT", rf"/(?s:.*)/ & ~/(?s:.*{_escaped(form.open)}.*)/")
        else:
            self._rule("TEXT", "/(?s:.*)/")
        self._rule("answer", "TEXT | lead calls")
        return "answer"

    def _calls(self, form: ToolFormat, tools: Sequence[Tool], choice: ToolChoice) -> None:
        """The rule `calls`: all that follows the first open marker."""
        bodies = [self._body(form, index, tool) for index, tool in enumerate(tools)]
        before, after = _optional_quoted(form.before), _optional_quoted(form.after)
        if form.name == "mistral":  # some write a space behind the marker
            before = f'" "? {before}'
        close = self._marker(form.close) if form.close else ""
        more = f"{{0,{MAX_CALLS - 1}}}" if choice.parallel else "{0,0}"
        between = _optional_quoted(form.between)
        self._rule("body", " | ".join(bodies))
        if form.repeats:
            self._rule("call", f"{before} body {after} {close}")
            calls = "call"
            if choice.parallel:
                self._rule("further", f"{between} {self._marker(form.open)} call")
                calls = f"call further{more}"
        else:
            first = f"{before} body"
            if form.style == "python":
                first = f"({' | '.join(f'{body}_first' for body in bodies)})"
            calls = f"{first} {after} {close}"
            if choice.parallel:
                self._rule("further", f"{between} body")
                calls = f"{first} further{more} {after} {close}"
        self._rule("calls", calls)

    def _body(self, form: ToolFormat, index: int, tool: Tool) -> str:
        name = f"call_{index}"
        if tool.is_custom:
            head = f"{CUSTOM_OPEN}{tool.name}{CUSTOM_NAME_END}"
            text = self._input(index, tool)
            self._rule(name, f"{_quoted(head)} {text}")
            if form.style == "python":
                self._rule(f"{name}_first", f"{_quoted(form.before + head)} {text}")
            return name
        if form.style == "xml":
            self._xml.call(name, tool)
            return name
        if form.style == "python":
            self._python.call(name, tool, form.before)
            return name
        schema = _json(arguments_schema(tool))
        if form.name_then_arguments:
            marker = self._marker(form.name_then_arguments)
            self._rule(name, f"{_quoted(tool.name)} {marker} {schema}")
        else:
            head = f'{{"name": {json.dumps(tool.name)}, "{form.arguments_key}": '
            self._rule(name, f'{_quoted(head)} {schema} "}}"')
        return name

    def _input(self, index: int, tool: Tool) -> str:
        """A custom tool's input and what ends it."""
        name = f"input_{index}"
        close = _quoted(CUSTOM_CLOSE)
        if tool.syntax is None:
            self._until(name, CUSTOM_CLOSE)
            return name
        self._rule(name, _regex(tool.definition) if tool.syntax == "regex"
                   else _nested(tool.definition))
        return f"{name} {close}"

    def _until(self, name: str, marker: str) -> None:
        """A rule for any text up to and with the marker's first occurrence."""
        control = self._control_token(marker)
        if control is None:
            self._rule(f"{name}[lazy]", rf"/(?s:.*){_escaped(marker)}/")
        else:
            self._rule(name, f"/(?s:.*)/ {control}")

    def _marker(self, text: str) -> str:
        return self._control_token(text) or _quoted(text)

    def _rule(self, name: str, body: str) -> None:
        self._rules.append(f"{name}: {body}")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _optional_quoted(text: str) -> str:
    return _quoted(text) if text else ""


def _json(schema: dict[str, Any]) -> str:
    try:
        schema = enforceable(schema)
    except UnsupportedSchemaError:
        pass  # of a tool: held to as far as llguidance can
    return "%json " + json.dumps(schema, ensure_ascii=False)


def _json_value(schema: dict[str, Any], strict: bool) -> str:
    """A value inside of a call; held to its schema as far as it can be, unless strict."""
    if strict:
        return _json(schema | {"x-guidance": _WRITTEN})
    options = {**_WRITTEN, "lenient": True, "coerce_one_of": True}
    return _json(_without_odd_patterns(schema) | {"x-guidance": options})


def _regex(pattern: str) -> str:
    return f"/{_slashed(pattern)}/"


def _escaped(text: str) -> str:
    return _slashed(re.escape(text))


def _slashed(pattern: str) -> str:
    """A regex as it may stand between slashes, on one line."""
    pattern = re.sub(r"(\\.)|/", lambda m: m[1] or r"\/", pattern, flags=re.DOTALL)
    return pattern.replace("\n", r"\n")


def _nested(grammar: str) -> str:
    """A grammar with rules of its own inside of ours."""
    from llguidance.gbnf_to_lark import is_lark_syntax

    if not is_lark_syntax(grammar):
        from llguidance.gbnf_to_lark import gbnf_to_lark
        grammar = gbnf_to_lark(grammar)
    return "%lark {\n" + grammar + "\n}"
