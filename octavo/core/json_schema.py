"""JSON Schemas as users write them -> schemas that llguidance enforces exactly.

Keywords that forbid nothing go; keywords it lacks become equivalent ones where there are some;
formats and patterns that it reads differently than JSON Schema does are spelled out. What cannot be
put right is refused here. Pure functions on plain values: no grammar, no tokenizer.
"""

import copy
from collections.abc import Iterator
from typing import Any

from octavo.core.json_schema_formats import FORMATS, ecma_pattern

Schema = dict[str, Any]

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLES = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else",
            "contains", "propertyNames", "unevaluatedProperties", "unevaluatedItems")
# keywords that apply further schemas to the same value: what these evaluate is not known here
_IN_PLACE = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "$ref",
             "$dynamicRef")
# formats of numbers, and names of kinds of text that any text may have
_FREE_FORMATS = frozenset((
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double",
    "decimal", "password", "binary", "path", "file-path", "directory-path", "multi-line",
    "textarea",
))
# what JSON Schema defines; one of another name beside a pattern names the pattern
_DEFINED_FORMATS = frozenset((
    "date-time", "date", "time", "duration", "email", "idn-email", "hostname", "idn-hostname",
    "ipv4", "ipv6", "uri", "uri-reference", "iri", "iri-reference", "uuid", "uri-template",
    "json-pointer", "relative-json-pointer", "regex",
))
# annotations: a schema of nothing else allows everything
_ANNOTATIONS = frozenset((
    "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly",
    "$comment",
))


class UnsupportedSchemaError(ValueError):
    """The schema asks for something that cannot be enforced; the text says what."""


def enforceable(schema: Any) -> Any:
    """An equivalent schema, a copy. Raises UnsupportedSchemaError, RecursionError."""
    schema = copy.deepcopy(schema)
    is_dynamic = _mentions(schema, "$dynamicRef")
    for found in _subschemas(schema):
        _drop_idle(found)
        _use_equivalents(found)
        _rewrite_strings(found)
        if not is_dynamic and isinstance(found.get("$dynamicAnchor"), str):
            found.setdefault("$anchor", found.pop("$dynamicAnchor"))
    return schema


def _subschemas(root: Any) -> Iterator[Schema]:
    """Every schema of the document, and what its references point to, once each, outer first."""
    todo, seen = [root], set()
    while todo:
        schema = todo.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        seen.add(id(schema))
        yield schema
        for key in _MAPS:
            if isinstance(schema.get(key), dict):
                todo.extend(schema[key].values())
        for key in _LISTS:
            if isinstance(schema.get(key), list):
                todo.extend(schema[key])
        for key in _SINGLES:
            value = schema.get(key)
            todo.extend(value if isinstance(value, list) else [value])
        if isinstance(schema.get("$ref"), str):
            todo.append(_pointed_to(root, schema["$ref"]))


def _pointed_to(root: Any, reference: str) -> Any:
    if not reference.startswith("#/"):
        return None
    found = root
    for step in reference[2:].split("/"):
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(step)] if step.isdecimal() and int(step) < len(found) else None
        else:
            found = found.get(step) if isinstance(found, dict) else None
    return found


def _mentions(value: Any, key: str) -> bool:
    if isinstance(value, list):
        return any(_mentions(item, key) for item in value)
    return isinstance(value, dict) and (
        key in value or any(_mentions(item, key) for item in value.values()))


def _allows_all(schema: Any) -> bool:
    return schema is True or (isinstance(schema, dict) and _ANNOTATIONS.issuperset(schema))


def _drop_idle(schema: Schema) -> None:
    """Removes keywords that forbid nothing here."""
    for key in ("unevaluatedProperties", "unevaluatedItems"):
        if _allows_all(schema.get(key)):
            del schema[key]
    # those that are left see what any keyword beside them evaluates
    is_seen = "unevaluatedProperties" in schema or "unevaluatedItems" in schema
    if schema.get("uniqueItems") is False or _is_count(schema.get("maxItems"), 1):
        schema.pop("uniqueItems", None)
    if (_is_count(schema.get("minContains"), 0) and "maxContains" not in schema
            and not is_seen):
        schema.pop("contains", None)
    if "contains" not in schema:
        schema.pop("minContains", None)
        schema.pop("maxContains", None)
    for key in ("then", "else"):
        if "if" not in schema or (_allows_all(schema.get(key)) and not is_seen):
            schema.pop(key, None)
    if "then" not in schema and "else" not in schema and not is_seen:
        schema.pop("if", None)
    if schema.get("not") is False:
        del schema["not"]
    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        value = schema.get(key)
        if isinstance(value, dict) and all(v == [] or _allows_all(v) for v in value.values()):
            del schema[key]


def _is_count(value: Any, most: int) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value <= most


def _use_equivalents(schema: Schema) -> None:
    """Says with keywords that are enforced what others say."""
    if not any(key in schema for key in _IN_PLACE):
        # nothing but the keywords beside it evaluates a property or an item
        if "unevaluatedProperties" in schema:
            rest = schema.pop("unevaluatedProperties")
            schema.setdefault("additionalProperties", rest)
        if "unevaluatedItems" in schema and "contains" not in schema:
            rest = schema.pop("unevaluatedItems")
            schema.setdefault("items", rest)
    names = schema.get("propertyNames")
    if not isinstance(names, dict) or names.get("type", "string") != "string":
        return
    told = {k: v for k, v in names.items() if k != "type" and k not in _ANNOTATIONS}
    if not told:
        del schema["propertyNames"]
        return
    if "properties" in schema or "patternProperties" in schema or len(told) > 1:
        return
    rest = schema.get("additionalProperties", True)
    if isinstance(told.get("pattern"), str):
        schema["patternProperties"] = {told["pattern"]: rest}
    elif isinstance(told.get("enum"), list):
        schema["properties"] = {name: copy.deepcopy(rest) for name in told["enum"]
                                if isinstance(name, str)}
    elif isinstance(told.get("const"), str):
        schema["properties"] = {told["const"]: rest}
    else:
        return
    schema["additionalProperties"] = False
    del schema["propertyNames"]


def _rewrite_strings(schema: Schema) -> None:
    """Patterns and formats."""
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = ecma_pattern(schema["pattern"])
    if isinstance(schema.get("patternProperties"), dict):
        schema["patternProperties"] = {
            ecma_pattern(key): value for key, value in schema["patternProperties"].items()}
    name = schema.get("format")
    if not isinstance(name, str):
        return
    kinds = schema.get("type", "string")
    is_text = kinds == "string" or (isinstance(kinds, list) and "string" in kinds)
    others = schema.get("allOf")
    has_pattern = "pattern" in schema or (isinstance(others, list) and any(
        isinstance(other, dict) and "pattern" in other for other in others))
    if not is_text or name in _FREE_FORMATS or (name not in _DEFINED_FORMATS and has_pattern):
        del schema["format"]
        return
    if name == "hostname":
        raise UnsupportedSchemaError(
            'the schema uses "format" "hostname", which is not supported (whether a label that '
            'begins with "xn--" is valid cannot be enforced): use a "pattern"')
    if name in FORMATS:
        del schema["format"]
        if "pattern" not in schema:
            schema["pattern"] = FORMATS[name]
        else:
            more = {"pattern": FORMATS[name]}
            schema["allOf"] = [*others, more] if isinstance(others, list) else [more]
