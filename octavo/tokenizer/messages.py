"""Checks the messages of a chat request and brings them into the form that templates expect.

Everything is copied into plain dicts, lists and strings. Knows nothing of
templates' text or tokens.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from octavo.errors import InvalidRequestError

# What a template does with `content`: wants a string, wants a list of parts, or copes with both.
ContentFormat = Literal["string", "list", "both"]

# Bounds of one request: no honest conversation comes near them, a hostile one is kept short.
MAX_MESSAGES = 8192
MAX_DEPTH = 64
_MAX_ROLE_CHARS = 64

# Content parts that carry text, and the key the text is under.
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}


def normalize_messages(
    messages: Any, *, content_format: ContentFormat, keep_developer: bool
) -> list[dict[str, Any]]:
    """Copies of `messages` with `content` in the template's format and tool arguments as objects.

    Absent or null content becomes "". The role "developer" becomes "system" unless
    `keep_developer`.

    Raises:
        InvalidRequestError: names `messages[i].field`, what is wrong and what is accepted.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidRequestError("messages must be a list of messages", param="messages")
    if not messages:
        raise InvalidRequestError("messages is empty: give at least one", param="messages")
    if len(messages) > MAX_MESSAGES:
        raise InvalidRequestError(
            f"messages has {len(messages)} entries; at most {MAX_MESSAGES} are accepted",
            param="messages",
        )
    result = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise _bad(where, "must be an object with role and content")
        copy = plain_copy(message, where)
        copy["role"] = _role(copy.get("role"), where, keep_developer)
        copy["content"] = _content(copy.get("content"), f"{where}.content", content_format)
        if copy.get("tool_calls") is None:
            copy.pop("tool_calls", None)
        else:
            _parse_tool_calls(copy["tool_calls"], f"{where}.tool_calls")
        result.append(copy)
    return result


def plain_copy(value: Any, where: str, depth: int = 0) -> Any:
    """A deep copy made of dict, list, str, int, float, bool and None only.

    Raises:
        InvalidRequestError: another type, nesting beyond `MAX_DEPTH`, or half a surrogate pair.
    """
    if isinstance(value, str):
        return _checked_text(value, where)
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth >= MAX_DEPTH:
        raise _bad(where, f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return {
            _checked_text(str(key), where): plain_copy(item, f"{where}.{key}", depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain_copy(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise _bad(where, f"has type {type(value).__name__}, which is not a JSON type")


def _checked_text(text: str, where: str) -> str:
    """`text` unless it holds surrogates, which no tokenizer takes (and which mark control tokens
    in a rendered template: a user's text must not hold them)."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise _bad(where, "is not valid Unicode: it holds half of a surrogate pair") from None
    return text


def _role(role: Any, where: str, keep_developer: bool) -> str:
    if not isinstance(role, str) or not role:
        raise _bad(f"{where}.role", "must be a role such as system, user, assistant or tool")
    if len(role) > _MAX_ROLE_CHARS:
        raise _bad(f"{where}.role", f"is longer than {_MAX_ROLE_CHARS} characters")
    return "system" if role == "developer" and not keep_developer else role


def _content(content: Any, where: str, content_format: ContentFormat) -> str | list[dict[str, str]]:
    if content is None:
        content = ""
    if isinstance(content, str):
        return content if content_format != "list" else [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise _bad(where, "must be a string or a list of text parts")
    texts = [_part_text(part, f"{where}[{index}]") for index, part in enumerate(content)]
    if content_format == "string":
        return "".join(texts)
    return [{"type": "text", "text": text} for text in texts]


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise _bad(where, 'must be a part such as {"type": "text", "text": "..."}')
    kind = part.get("type", "text")
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise _bad(f"{where}.type", f"is {kind!r}: this model reads text parts only")
    text = part.get(key)
    if not isinstance(text, str):
        raise _bad(f"{where}.{key}", "must be a string")
    return text


def _parse_tool_calls(calls: Any, where: str) -> None:
    """Turns arguments, which clients send as JSON text, into the objects that templates print."""
    if not isinstance(calls, list):
        raise _bad(where, "must be a list")
    for index, call in enumerate(calls):
        if not isinstance(call, dict):
            raise _bad(f"{where}[{index}]", "must be an object")
        function = call.get("function", call)
        if not isinstance(function, dict):
            raise _bad(f"{where}[{index}].function", "must be an object")
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            function["arguments"] = _parsed(arguments)
        elif arguments is None:
            function["arguments"] = {}


def _parsed(arguments: str) -> Any:
    """The object that the text spells; {} for nothing or null. A text that spells no object (a
    model wrote it, after all) stays as it is."""
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    if value is None:
        return {}
    return plain_copy(value, "arguments") if isinstance(value, dict) else arguments


def _bad(where: str, what: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where} {what}", param=where)
