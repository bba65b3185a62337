"""A tool's parameters one by one, for families that write each by itself and not one JSON object.

Plain values; knows no family's markup, no grammar and no text of a model.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from octavo.tools.definitions import Tool

TYPES = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
ANNOTATIONS = frozenset(("title", "description", "default", "examples", "deprecated",
                         "readOnly", "writeOnly", "$comment"))
_DEFINITIONS = ("$defs", "definitions")
_MAX_DEPTH = 8  # of references and unions that are looked through

# by a tool's name and a parameter's: the JSON types its value may have; a parameter that is not
# there may have any
Kinds = Mapping[str, Mapping[str, frozenset[str]]]


@dataclasses.dataclass(slots=True, frozen=True)
class Parameter:
    """One of them.

    Attributes:
        schema: of its value, with the definitions it may refer to.
        kinds: the JSON types its value may have, as far as the schema tells.
    """

    name: str
    schema: dict[str, Any]
    is_required: bool
    kinds: frozenset[str]


@dataclasses.dataclass(slots=True, frozen=True)
class Parameters:
    """What a tool takes.

    Attributes:
        is_open: others than those named may be given, too.
        loose: keywords that say more about the arguments as a whole than this can hold.
    """

    named: tuple[Parameter, ...]
    is_open: bool
    loose: tuple[str, ...]


def parameters_of(tool: Tool) -> Parameters:
    """Of a function tool, in the order of its schema."""
    root = tool.parameters
    definitions = {k: root[k] for k in _DEFINITIONS if isinstance(root.get(k), dict)}
    schema = _followed(root, root)
    properties = schema.get("properties")
    required = schema.get("required")
    named = []
    for name, found in (properties.items() if isinstance(properties, dict) else ()):
        own = dict(found) if isinstance(found, dict) else {}
        named.append(Parameter(
            name, own | definitions if definitions and own else own,
            isinstance(required, list) and name in required, kinds_of(own, root)))
    told = {"type", "properties", "required", "additionalProperties", "$schema", "$id", "$ref",
            "x-guidance", *_DEFINITIONS, *ANNOTATIONS}
    rest = schema.get("additionalProperties", False)
    loose = [key for key in schema if key not in told]
    if isinstance(rest, dict) and not ANNOTATIONS.issuperset(rest):
        loose.append("additionalProperties")
    if isinstance(required, list) and {n for n in required if isinstance(n, str)} - {
            p.name for p in named}:
        loose.append("required")
    return Parameters(tuple(named), rest is not False or bool(loose), tuple(loose))


def kinds_by_tool(tools: Iterable[Tool]) -> Kinds:
    """The types of all parameters of these tools."""
    return {tool.name: {p.name: p.kinds for p in parameters_of(tool).named}
            for tool in tools if not tool.is_custom}


def kinds_of(schema: Any, root: dict[str, Any], depth: int = _MAX_DEPTH) -> frozenset[str]:
    """The JSON types that a schema allows; all of them where it does not tell."""
    schema = _followed(schema, root)
    if not isinstance(schema, dict) or not depth:
        return TYPES
    given = schema.get("type")
    kinds = TYPES
    if isinstance(given, str):
        kinds = frozenset((given,))
    elif isinstance(given, list):
        kinds = frozenset(k for k in given if isinstance(k, str))
    if isinstance(schema.get("enum"), list):
        kinds &= frozenset().union(*map(types_of, schema["enum"]))
    if "const" in schema:
        kinds &= types_of(schema["const"])
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            kinds &= frozenset().union(*(kinds_of(s, root, depth - 1) for s in schema[key]))
    if isinstance(schema.get("allOf"), list):
        for part in schema["allOf"]:
            kinds &= kinds_of(part, root, depth - 1)
    return kinds or TYPES


def types_of(value: Any) -> frozenset[str]:
    """The names that JSON Schema has for a value's type."""
    if isinstance(value, bool):
        return frozenset(("boolean",))
    if isinstance(value, (int, float)):
        return frozenset(("integer", "number") if float(value).is_integer() else ("number",))
    names = {str: "string", type(None): "null", list: "array", dict: "object"}
    return frozenset((names[type(value)],))


def _followed(schema: Any, root: dict[str, Any]) -> Any:
    """What a schema refers to, where that is a definition of the document."""
    for _ in range(_MAX_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found: Any = root
        for step in reference[2:].split("/"):
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(
                found, dict) else None
        if not isinstance(found, dict):
            break
        schema = {**{k: v for k, v in schema.items() if k != "$ref"}, **found}
    return schema
