"""Request body -> typed request, refused with the field's name. JSON only; knows no route.

Explicit nulls count as absent, as clients send them for every option they leave alone; so they do
not where they mean something (`NULLABLE` of a struct). Unknown fields are ignored, and each name is
logged once; a strict server refuses them. A whole number may be written with a fraction of zero: in
JSON 1.0 and 1 are the same.
"""

import logging
import re
from typing import Any, TypeVar

import msgspec

from octavo.errors import InvalidRequestError

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=msgspec.Struct)

_PATH = re.compile(r"^(.*?)(?: - at `\$(.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.+)`$")
# an escape of JSON; pairs are taken whole, and an escaped backslash begins no other one
_ESCAPE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
                     rb"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.", re.DOTALL)
# Names already logged. Clients choose these names, so both count and length are bounded.
_MAX_LOGGED_NAMES = 256
_MAX_NAME_CHARS = 64
# No typed field with whole numbers is deeper; what a client nests has no end.
_MAX_NUMBER_DEPTH = 8
_logged_names: set[str] = set()


def decode_request(body: bytes, kind: type[T], *, strict: bool = False) -> T:
    """The request in a body. Raises InvalidRequestError, with `param` where a field is to blame.

    strict: a field that `kind` does not have is refused.
    """
    return typed_request(decode_object(body), kind, strict=strict)


def typed_request(fields: dict[str, Any], kind: type[T], *, strict: bool = False,
                  where: str = "") -> T:
    """A decoded object as `kind`; as decode_request. where: what names of fields in errors begin
    with."""
    kept = getattr(kind, "NULLABLE", ())
    given = {name: value for name, value in fields.items() if value is not None or name in kept}
    known = kind.__struct_fields__
    for name in given:
        if name in known:
            continue
        if strict:
            shown = name if len(name) <= _MAX_NAME_CHARS else name[:_MAX_NAME_CHARS] + "..."
            shown = where + shown
            raise InvalidRequestError(
                f"{shown!r} is no field of this route: leave it out (this server was started with "
                "--strict-params)", param=shown)
        _note_unknown(where + name)
    for name in ("stream_options", "response_format"):
        if isinstance(given.get(name), dict):
            given[name] = {k: v for k, v in given[name].items() if v is not None}
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        refusal = _refusal(str(error), where)
    try:
        return msgspec.convert(whole_numbers(given), kind)
    except msgspec.ValidationError:
        raise refusal from None


def whole_numbers(value: Any, *, depth: int = _MAX_NUMBER_DEPTH) -> Any:
    """The same JSON value with integers for numbers like 1.0. depth: how far in it looks."""
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if isinstance(value, list) and depth:
        return [whole_numbers(item, depth=depth - 1) for item in value]
    if isinstance(value, dict) and depth:
        return {name: whole_numbers(item, depth=depth - 1) for name, item in value.items()}
    return value


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises InvalidRequestError."""
    if not body:
        raise InvalidRequestError("the body is empty: send a JSON object")
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise InvalidRequestError("the body is not usable JSON: nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        lone = _lone_surrogate(body)
        if lone is not None:
            raise InvalidRequestError(
                f"the body is not valid JSON: it holds the lone surrogate {lone}, half of a "
                "character that UTF-16 writes as two; send both halves, or leave it out"
            ) from None
        raise InvalidRequestError(f"the body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequestError("the body must be a JSON object")
    return value


def _lone_surrogate(body: bytes) -> str | None:
    """The first escape in a body that is half of a pair without its other half."""
    for found in _ESCAPE.finditer(body):
        if found["lone"] is not None:
            return found["lone"].decode()
    return None


def _refusal(text: str, where: str) -> InvalidRequestError:
    found = _PATH.match(text)
    assert found is not None
    what, path = found[1], (found[2] or "").lstrip(".")
    missing = _MISSING.match(what)
    if missing is not None:
        param = where + (f"{path}.{missing[1]}" if path else missing[1])
        return InvalidRequestError(f"{param} is missing: it is required", param=param)
    what = what.replace("`", "")
    what = what[:1].lower() + what[1:]
    path = where + path if path else where.rstrip(".")
    return InvalidRequestError(f"{path or 'the body'}: {what}", param=path or None)


def _note_unknown(name: str) -> None:
    if name in _logged_names or len(_logged_names) >= _MAX_LOGGED_NAMES:
        return
    if len(name) <= _MAX_NAME_CHARS:
        _logged_names.add(name)
        logger.warning("request field %r is unknown and ignored (logged once)", name)
