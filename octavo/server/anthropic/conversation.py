"""Messages of content blocks -> messages in the chat completions shape. Refuses what is not text,
naming the block. Knows no template and no sampling.
"""

from collections.abc import Sequence
from typing import Any

from octavo.core.refusals import bad, short
from octavo.errors import InvalidRequestError

_ROLES = ("user", "assistant", "system")
# ids of calls in this API; what stands behind it is the model family's own id
TOOL_ID_PREFIX = "toolu_"
_ONLY_TEXT = "this server takes text, tool_use, tool_result and thinking"
_USER, _ASSISTANT = ("text", "tool_result"), ("text", "tool_use", "thinking", "redacted_thinking")
_BLOCKS = {"user": _USER, "assistant": _ASSISTANT, "system": ("text",)}


def chat_messages(messages: Sequence[Any], system: Any) -> list[dict[str, Any]]:
    """The conversation. Raises InvalidRequestError naming the place."""
    if not messages:
        raise bad("messages", "is empty: give at least one message")
    result = _system(system)
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise bad(where, f"is a {_kind(message)}: give an object with role and content")
        role = message.get("role")
        if role not in _ROLES:
            raise bad(f"{where}.role", f"is {short(role)}: give one of {', '.join(_ROLES)}")
        blocks = _blocks(message.get("content"), f"{where}.content", _BLOCKS[role])
        if role == "assistant":
            result.append(_assistant(blocks))
        else:
            result += _turns(role, blocks)
    return result


def continues(messages: Sequence[Any]) -> bool:
    """Whether the answer goes on with the last message: it is the assistant's, with text only.
    Raises InvalidRequestError for one that ends in a call."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant":
        return False
    if last.get("tool_calls"):
        raise bad("messages", "ends with a tool_use block: give its tool_result in a message of "
                   "the user")
    return bool(last["content"])


def _system(system: Any) -> list[dict[str, Any]]:
    if system is None or system == "":
        return []
    texts = [block["text"] for block in _blocks(system, "system", ("text",))]
    text = "\n\n".join(text for text in texts if text)
    return [{"role": "system", "content": text}] if text else []


def _blocks(content: Any, where: str, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Checked blocks; a text is one block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise bad(where, "is missing: give a text or a list of blocks" if content is None
                   else f"is a {_kind(content)}: give a text or a list of blocks")
    return [_block(block, f"{where}[{i}]", kinds) for i, block in enumerate(content)]


def _block(block: Any, where: str, kinds: Sequence[str]) -> dict[str, Any]:
    if not isinstance(block, dict):
        raise bad(where, f"is a {_kind(block)}: give a block, an object with a type")
    kind = block.get("type")
    if kind not in kinds:
        known = kind in _USER or kind in _ASSISTANT
        raise InvalidRequestError(
            f"{where}.type is {short(kind)}: " + (f"here stand {', '.join(kinds)} blocks" if known
                                                   else f"{_ONLY_TEXT} blocks only"),
            param=where)
    if kind == "text":
        _text(block, "text", where)
    elif kind == "thinking":
        _text(block, "thinking", where)
    elif kind == "tool_use":
        _text(block, "id", where)
        _text(block, "name", where)
        if not isinstance(block.get("input"), dict):
            raise bad(f"{where}.input", f"is {short(block.get('input'))}: give an object")
    elif kind == "tool_result":
        _text(block, "tool_use_id", where)
        if not isinstance(block.get("is_error"), (bool, type(None))):
            raise bad(f"{where}.is_error", f"is {short(block['is_error'])}: give true or false")
        content = block.get("content")
        block = block | {"content": [] if content is None
                         else _blocks(content, f"{where}.content", ("text",))}
    return block


def _text(block: dict[str, Any], field: str, where: str) -> None:
    if not isinstance(block.get(field), str):
        raise bad(f"{where}.{field}", f"is {short(block.get(field))}: give a text")


def _assistant(blocks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One message: reasoning that was hidden is left out, as no template could print it."""
    texts = [b["text"] for b in blocks if b["type"] == "text"]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    thinking = "".join(b["thinking"] for b in blocks if b["type"] == "thinking")
    if thinking:
        message["reasoning"] = thinking
    calls = [{"id": _call_id(b["id"]), "type": "function", "function": {
        "name": b["name"], "arguments": b["input"]}} for b in blocks if b["type"] == "tool_use"]
    if calls:
        message["tool_calls"] = calls
    return message


def _turns(role: str, blocks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Texts as one message, and a message for each result, in their order."""
    result: list[dict[str, Any]] = []
    for block in blocks:
        if block["type"] == "tool_result":
            text = "".join(part["text"] for part in block["content"])
            if block.get("is_error"):
                text = f"Error: {text}"
            result.append({"role": "tool", "tool_call_id": _call_id(block["tool_use_id"]),
                           "content": text})
        elif result and result[-1]["role"] == role:
            result[-1]["content"].append({"type": "text", "text": block["text"]})
        else:
            result.append({"role": role, "content": [{"type": "text", "text": block["text"]}]})
    return result or [{"role": role, "content": ""}]


def _call_id(given: str) -> str:
    return given.removeprefix(TOOL_ID_PREFIX)


def _kind(value: object) -> str:
    return type(value).__name__
