"""response_format, structured_outputs and guided_* of a request -> StructuredOutputs.

Knows the wire's names; compiling is the engine's business.
"""

from typing import Any

from octavo.core.refusals import short
from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import InvalidRequestError
from octavo.server.protocol.requests import SamplingFields

# vLLM's older names for the fields of structured_outputs
_GUIDED = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice",
           "guided_grammar": "grammar"}
_FIELDS = ("json", "regex", "choice", "grammar", "json_object", "whitespace_pattern")
# accepted without effect: there is one backend, and no white space unless a pattern is given
_WITHOUT_EFFECT = ("disable_fallback", "disable_any_whitespace")


def structured_outputs(request: SamplingFields) -> StructuredOutputs | None:
    """What the request asks for; None for free text. Raises InvalidRequestError naming the
    field."""
    found: dict[str, StructuredOutputs] = {}
    formatted = _of_response_format(request.response_format)
    if formatted is not None:
        found["response_format"] = formatted
    if request.structured_outputs is not None:
        found["structured_outputs"] = _of_structured_outputs(request.structured_outputs)
    for name, kind in _GUIDED.items():
        value = getattr(request, name)
        if value is not None:
            found[name] = _made({kind: value}, name)
    if len(found) > 1:
        raise InvalidRequestError(f"{' and '.join(found)} are given: give one of them",
                                  param=list(found)[1])
    return next(iter(found.values()), None)


def _of_response_format(given: dict[str, Any] | None) -> StructuredOutputs | None:
    field = "response_format"
    if given is None:
        return None
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        # some servers take a schema here: ignoring it would change what the user gets
        if given.get("schema") is not None:
            return _made({"json": given["schema"]}, field)
        return _made({"json_object": True}, field)
    if kind != "json_schema":
        raise InvalidRequestError(
            f"response_format.type is {short(kind)}: give 'text', 'json_object' or "
            "'json_schema'", param=field)
    inner = given.get("json_schema")
    if not isinstance(inner, dict):
        raise InvalidRequestError("response_format.json_schema is missing: give an object with "
                                  "'name' and 'schema'", param=field)
    if inner.get("schema") is None:
        raise InvalidRequestError("response_format.json_schema.schema is missing: give a JSON "
                                  "Schema", param=field)
    if not isinstance(inner.get("strict"), (bool, type(None))):
        raise InvalidRequestError(
            f"response_format.json_schema.strict is {short(inner['strict'])}: give true or "
            "false; the schema is enforced either way", param=field)
    return _made({"json": inner["schema"]}, field)


def _of_structured_outputs(given: Any) -> StructuredOutputs:
    field = "structured_outputs"
    if not isinstance(given, dict):
        raise InvalidRequestError(f"structured_outputs is {short(given)}: give an object with "
                                  f"one of {', '.join(_FIELDS[:-1])}", param=field)
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if value is None or name in _WITHOUT_EFFECT:
            continue
        if name not in _FIELDS:
            raise InvalidRequestError(f"structured_outputs.{short(name)} is not supported: its "
                                      f"fields are {', '.join(_FIELDS)}", param=field)
        fields[name] = value
    return _made(fields, field)


def _made(fields: dict[str, Any], field: str) -> StructuredOutputs:
    return StructuredOutputs(**fields, field=field)
