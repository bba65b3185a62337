"""How a request's bad value is put into words. Knows no field and no route."""

from octavo.errors import InvalidRequestError

_MAX_CHARS = 80


def short(value: object) -> str:
    """The value as Python writes it, cut so that an error stays one line."""
    text = repr(value)
    return text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 3] + "..."


def bad(field: str, what: str) -> InvalidRequestError:
    """The error "FIELD WHAT", which names the field as its param."""
    return InvalidRequestError(f"{field} {what}", param=field)
