"""The grammar rules of calls written as Python (python_calls.py): every argument held to its own
schema. Writes rules; compiles nothing.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from octavo.core.refusals import bad, short
from octavo.tools.definitions import Tool
from octavo.tools.parameters import ANNOTATIONS, Parameter, kinds_of, parameters_of
from octavo.tools.python_calls import literal

# how an answer begins that is a list of calls, of whatever name: no text begins so
BEGINS_A_CALL = r"[ \t\r\n]*\[[ \t\r\n]*[A-Za-z_][A-Za-z0-9_.-]*\("
_DEFINITIONS = frozenset(("$defs", "definitions"))
_KEY = re.compile(r"[^\s()\[\]{},'\"=]+")
_MAX_DEPTH = 4  # of unions and lists written as Python's; inside of those values are JSON's


class PythonRules:
    """Collects the rules of several tools.

    rule(name, body) adds a rule; json_rule(schema, strict) is what stands for a JSON value of a
    schema.
    """

    def __init__(self, rule: Callable[[str, str], None],
                 json_rule: Callable[[dict[str, Any], bool], str]) -> None:
        self._rule = rule
        self._json = json_rule
        self._values: dict[str, str] = {}

    def call(self, name: str, tool: Tool, lead: str) -> None:
        """A rule of that name for a call of the tool, and NAME_first for one behind `lead`: one
        lexeme with the call's beginning, as text could go on behind the lead alone. Raises
        InvalidRequestError where the tool is strict and says what cannot be enforced, or needs an
        argument that cannot be written."""
        parameters = parameters_of(tool)
        if tool.strict and parameters.loose:
            raise bad(f"{tool.field}.parameters.{parameters.loose[0]}", "cannot be enforced where "
                      "calls are Python: leave it out, or strict")
        first = [f"{name}_from_{i}" for i in range(len(parameters.named) + 1)]
        # from_i: arguments i and later, none of them having come; then_i: one has come
        self._rule(f"{name}_then_{len(first) - 1}", '""')
        self._rule(first[-1], '""')
        for i in reversed(range(len(parameters.named))):
            self._argument(name, i, parameters.named[i], tool)
        self._rule(name, f"{_quoted(f'{tool.name}(')} {first[0]} \")\"")
        self._rule(f"{name}_first", f"{_quoted(f'{lead}{tool.name}(')} {first[0]} \")\"")

    def _argument(self, name: str, i: int, parameter: Parameter, tool: Tool) -> None:
        rest_first, rest_then = f"{name}_from_{i + 1}", f"{name}_then_{i + 1}"
        if not _KEY.fullmatch(parameter.name):
            if parameter.is_required:
                raise bad(f"{tool.field}.parameters.properties", f"has {short(parameter.name)}, "
                          "which cannot be written where calls are Python: leave out white "
                          "space, quotes, brackets, ',' and '='")
            self._rule(f"{name}_from_{i}", rest_first)
            self._rule(f"{name}_then_{i}", rest_then)
            return
        value = self._value(parameter.schema, tool, parameter.schema, _MAX_DEPTH)
        written = f"{_quoted(parameter.name + '=')} {value} {rest_then}"
        skip_first = "" if parameter.is_required else f" | {rest_first}"
        skip_then = "" if parameter.is_required else f" | {rest_then}"
        self._rule(f"{name}_from_{i}", f"{written}{skip_first}")
        self._rule(f"{name}_then_{i}", f'", " {written}{skip_then}')

    def _value(self, schema: Any, tool: Tool, root: dict[str, Any], depth: int) -> str:
        """What stands for a value: a literal of Python where it is a word, or has words in a list
        or a union; else JSON, which reads the same."""
        schema = {k: v for k, v in schema.items() if k not in ANNOTATIONS} if isinstance(
            schema, dict) else {}
        own = {k: v for k, v in schema.items() if k not in _DEFINITIONS}
        values = own.get("enum", [own["const"]] if "const" in own else None)
        if isinstance(values, list) and values:
            return f"({' | '.join(_quoted(literal(v)) for v in values)})"
        kinds = own.get("type")
        unions = [key for key in ("anyOf", "oneOf") if isinstance(own.get(key), list)]
        definitions = {k: root[k] for k in _DEFINITIONS if k in root}
        if depth and unions and len(own) == 1 and own[unions[0]]:
            parts = [self._value(part, tool, root, depth - 1) for part in own[unions[0]]]
            return f"({' | '.join(parts)})"
        if isinstance(kinds, list) and kinds:
            parts = [self._value(schema | {"type": kind}, tool, root, depth) for kind in kinds]
            return f"({' | '.join(parts)})"
        if kinds == "boolean":
            return '("True" | "False")'
        if kinds == "null":
            return '"None"'
        items = own.get("items")
        if (depth and kinds == "array" and set(own) == {"type", "items"}
                and kinds_of(items, root) & {"boolean", "null"}):
            item = self._value(items, tool, root, depth - 1)
            return f'("[" ({item} (", " {item})*)? "]")'
        return self._shared(self._json(schema | definitions, tool.strict))

    def _shared(self, body: str) -> str:
        name = self._values.get(body)
        if name is None:
            name = self._values[body] = f"python_value_{len(self._values)}"
            self._rule(name, body)
        return name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
