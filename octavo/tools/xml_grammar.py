"""The grammar rules of calls written as XML (xml_calls.py): every parameter held to its own schema.

A text has no quotes to be told by, so it ends at the closing tag; what a JSON Schema says of texts
becomes regular expressions here. Writes rules; compiles nothing.
"""

import json
import re
from collections.abc import Callable
from typing import Any

from octavo.core.json_schema_formats import ecma_pattern
from octavo.core.refusals import bad, short
from octavo.tools.definitions import Tool
from octavo.tools.parameters import ANNOTATIONS, Parameter, Parameters, parameters_of
from octavo.tools.xml_calls import FUNCTION_CLOSE, FUNCTION_OPEN, PARAMETER_CLOSE, PARAMETER_OPEN

# Of a tool that takes parameters it does not name.
_MAX_OPEN_PARAMETERS = 32
_TEXT_KEYS = frozenset(("type", "minLength", "maxLength", "pattern", "$defs", "definitions"))
_UNION_KEYS = frozenset(("anyOf", "oneOf", "$defs", "definitions"))
_CLOSE = re.escape(PARAMETER_CLOSE).replace("/", r"\/")
_NO_CLOSE_BEFORE_THE_END = rf"~/(?s:.*){_CLOSE}(?s:.+)/"
_ODD_PATTERN = re.compile(r"\(\?(?!:)|\\[1-9bBk]|[\^$|]")


class XmlRules:
    """Collects the rules of several tools; equal values share one.

    rule(name, body) adds a rule; json_rule(schema, strict) is what stands for a JSON
    value of a schema.
    """

    def __init__(self, rule: Callable[[str, str], None],
                 json_rule: Callable[[dict[str, Any], bool], str]) -> None:
        self._rule = rule
        self._json = json_rule
        self._values: dict[str, str] = {}

    def call(self, name: str, tool: Tool) -> None:
        """A rule of that name for a call of the tool. Raises InvalidRequestError where the tool is
        strict and says what cannot be enforced, or needs a parameter that cannot be written."""
        parameters = parameters_of(tool)
        _check(tool, parameters)
        parts = [_quoted(f"{FUNCTION_OPEN}{tool.name}>\n")]
        for parameter in parameters.named:
            if not _is_writable(parameter.name):
                continue
            opened = _quoted(f"{PARAMETER_OPEN}{parameter.name}>\n")
            part = f"{opened} {self._value(parameter, tool.strict)}"
            parts.append(part if parameter.is_required else f"({part})?")
        if parameters.is_open:
            # its name is not one of the others': a key comes once
            others = "|".join(re.escape(p.name).replace("/", r"\/") for p in parameters.named)
            self._rule(f"{name}_other", f'"{PARAMETER_OPEN}" {name.upper()}_KEY ">\\n" '
                       f"{self._free_text()}")
            self._rule(f"{name.upper()}_KEY", r"/[^<>=\r\n]{1,64}/" + (
                f" & ~/({others})/" if others else ""))
            parts.append(f"{name}_other{{0,{_MAX_OPEN_PARAMETERS}}}")
        self._rule(name, " ".join([*parts, _quoted(FUNCTION_CLOSE)]))

    def _value(self, parameter: Parameter, strict: bool) -> str:
        """A value and its closing tag."""
        end = _quoted(f"\n{PARAMETER_CLOSE}\n")
        schema = {k: v for k, v in parameter.schema.items() if k not in ANNOTATIONS}
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list) and values:
            texts = [v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)
                     for v in values]
            return self._shared(f"({' | '.join(map(_quoted, texts))}) {end}")
        if "string" not in parameter.kinds:
            return self._shared(f"{self._json(schema, strict)} {end}")
        conditions = _conditions(schema) if parameter.kinds == {"string"} else []
        return self._free_text(conditions)

    def _free_text(self, conditions: list[str] | None = None) -> str:
        terms = [rf"/(?s:.*)\n{_CLOSE}/", _NO_CLOSE_BEFORE_THE_END, *(conditions or [])]
        return self._shared(" & ".join(terms), lazy=True)

    def _shared(self, body: str, *, lazy: bool = False) -> str:
        name = self._values.get(body)
        if name is None:
            name = self._values[body] = f"value_{len(self._values)}"
            if lazy:
                self._rule(f"{name.upper()}_TEXT", body)
                self._rule(f"{name}_text[lazy]", f"{name.upper()}_TEXT")
                self._rule(name, f'{name}_text "\\n"')
            else:
                self._rule(name, body)
        return name


def _check(tool: Tool, parameters: Parameters) -> None:
    for parameter in parameters.named:
        if parameter.is_required and not _is_writable(parameter.name):
            raise bad(f"{tool.field}.parameters.properties", f"has {short(parameter.name)}, which "
                      "cannot be written where calls are XML: leave out '<', '>', '=' and line "
                      "breaks")
    if not tool.strict:
        return
    where = f"{tool.field}.parameters"
    for key in parameters.loose:
        raise bad(f"{where}.{key}", "cannot be enforced where calls are XML: leave it out, or "
                  "strict")
    for parameter in parameters.named:
        if "string" not in parameter.kinds:
            continue
        for key in sorted(_unheld(parameter)):
            raise bad(f"{where}.properties.{parameter.name}.{key}", "cannot be enforced where "
                      "calls are XML: leave it out, or strict")


def _unheld(parameter: Parameter) -> set[str]:
    """Keywords of a value that may be a text which its rule does not hold."""
    schema = {k: v for k, v in parameter.schema.items() if k not in ANNOTATIONS}
    if "enum" in schema or "const" in schema:
        return set(schema) - {"enum", "const", "type", "$defs", "definitions"}
    if parameter.kinds == {"string"}:
        pattern = schema.get("pattern")
        is_held = pattern is None or (isinstance(pattern, str) and _bare(pattern) is not None)
        return set(schema) - (_TEXT_KEYS if is_held else _TEXT_KEYS - {"pattern"})
    unions = [s for key in ("anyOf", "oneOf") for s in schema.get(key, [])]
    simple = all(isinstance(s, dict) and {"type"} >= set(s) - ANNOTATIONS for s in unions)
    return set(schema) - {"type", *(_UNION_KEYS if simple else ())}


def _conditions(schema: dict[str, Any]) -> list[str]:
    """What a text and its closing tag have to match."""
    found = []
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if _is_count(least) and (least or most is not None) and (most is None or _is_count(most)):
        found.append(rf"/(?s:.){{{least},{'' if most is None else most}}}\n{_CLOSE}/")
    pattern = schema.get("pattern")
    bare = _bare(pattern) if isinstance(pattern, str) else None
    if bare is not None:
        begin, inner, end = bare
        found.append(f"/{'' if begin else '(?s:.*)'}({_slashed(inner)})"
                     rf"{'' if end else '(?s:.*)'}\n{_CLOSE}/")
    return found


def _bare(pattern: str) -> tuple[bool, str, bool] | None:
    """(held at the start, the pattern without anchors, held at the end); None for one that says
    more than such a regular expression can."""
    pattern = ecma_pattern(pattern)
    begin, end = pattern.startswith("^"), bool(re.search(r"(?<!\\)(\\\\)*\$$", pattern))
    inner = pattern[1 if begin else 0:len(pattern) - (1 if end else 0)]
    # within a class they are characters
    plain = re.sub(r"\\[\^$|]|\[(?:[^\]\\]|\\.)*\]", "", inner)
    if _ODD_PATTERN.search(plain):
        return None
    return begin, inner, end


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_writable(key: str) -> bool:
    return bool(key) and not re.search(r"[<>=\r\n]", key)


def _slashed(pattern: str) -> str:
    pattern = re.sub(r"(\\.)|/", lambda m: m[1] or r"\/", pattern, flags=re.DOTALL)
    return pattern.replace("\n", r"\n")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
