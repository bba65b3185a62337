"""The field `input` -> items in full (as they are kept and listed) -> messages for the template.

Everything that is no text, no call and no result is refused, by its place. Knows no engine.
"""

import json
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from octavo.core.refusals import bad, short

Item = dict[str, Any]

MAX_ITEMS = 8192
_REFERENCE = "item_reference"
_ROLES = ("user", "assistant", "system", "developer")
_STATUSES = ("in_progress", "completed", "incomplete")
# content parts, and the key of their text
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal",
               "summary_text": "text", "reasoning_text": "text"}


def input_items(given: Any, *, find: Callable[[str], Item | None] = lambda item_id: None
                ) -> list[Item]:
    """The items of a request, each with id, type and all that its type demands.

    given: a text, a list of items, or None. find: the item that an item_reference means. Raises
    InvalidRequestError naming the place.
    """
    if given is None:
        return []
    if isinstance(given, str):
        return [_message({"role": "user", "content": given}, "input")]
    if not isinstance(given, list):
        raise bad("input", f"is {short(given)}: give a text or a list of items")
    if len(given) > MAX_ITEMS:
        raise bad("input", f"has {len(given)} items, and may have {MAX_ITEMS}")
    return [_item(item, f"input[{index}]", find) for index, item in enumerate(given)]


def _item(item: Any, where: str, find: Callable[[str], Item | None]) -> Item:
    if not isinstance(item, dict):
        raise bad(where, f"is {short(item)}: give an object")
    kind = item.get("type")
    if kind is None and ("role" in item or "id" in item):
        kind = "message" if "role" in item else _REFERENCE
    if kind == _REFERENCE:
        item_id = item.get("id")
        found = find(item_id) if isinstance(item_id, str) else None
        if found is None:
            raise bad(f"{where}.id", f"is {short(item_id)}: no item of that id is kept here, "
                       "send the item itself")
        return _item(found, where, find)
    make = _KINDS.get(kind) if isinstance(kind, str) else None
    if make is None:
        raise bad(f"{where}.type", "is missing: give the item's type" if kind is None else
                   f"is {short(kind)}: this server takes {', '.join(_KINDS)}, {_REFERENCE}")
    return make(item, where)


def _message(item: Item, where: str) -> Item:
    role = item.get("role")
    if role not in _ROLES:
        raise bad(f"{where}.role", f"is {short(role)}: give one of {', '.join(_ROLES)}")
    content = item.get("content")
    if content is None:
        raise bad(f"{where}.content", "is missing: give a text or a list of parts")
    kind = "output_text" if role == "assistant" else "input_text"
    parts: list[Any] = [{"type": kind, "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, list):
        raise bad(f"{where}.content", f"is {short(content)}: give a text or a list of parts")
    full = [_part(part, f"{where}.content[{i}]", kind) for i, part in enumerate(parts)]
    return {"id": _id(item, where, "msg"), "type": "message", "status": _status(item, where),
            "role": role, "content": full}


def _part(part: Any, where: str, kind: str) -> Item:
    """A part of a message in full. kind: what plain text is there."""
    text = _part_text(part, where)
    if isinstance(part, dict) and part.get("type") == "refusal":
        return {"type": "refusal", "refusal": text}
    if kind == "output_text":
        return {"type": kind, "text": text, "annotations": [], "logprobs": []}
    return {"type": kind, "text": text}


def _part_text(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise bad(where, f"is {short(part)}: give a part, as "
                   '{"type": "input_text", "text": "..."}')
    kind = part.get("type")
    key = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if key is None:
        raise bad(f"{where}.type", f"is {short(kind)}: this server reads text only")
    text = part.get(key)
    if not isinstance(text, str):
        raise bad(f"{where}.{key}", f"is {short(text)}: give a text")
    return text


def _function_call(item: Item, where: str) -> Item:
    arguments = item.get("arguments")
    if not isinstance(arguments, str) or not is_object(arguments):
        raise bad(f"{where}.arguments", f"is {short(arguments)}: give a JSON object as text")
    return {"id": _id(item, where, "fc"), "type": "function_call",
            "status": _status(item, where), "call_id": _label(item, "call_id", where),
            "name": _label(item, "name", where), "arguments": arguments}


def _custom_call(item: Item, where: str) -> Item:
    text = item.get("input")
    if not isinstance(text, str):
        raise bad(f"{where}.input", f"is {short(text)}: give a text")
    return {"id": _id(item, where, "ctc"), "type": "custom_tool_call",
            "status": _status(item, where), "call_id": _label(item, "call_id", where),
            "name": _label(item, "name", where), "input": text}


def _result(prefix: str) -> Callable[[Item, str], Item]:
    def make(item: Item, where: str) -> Item:
        output = item.get("output")
        if isinstance(output, list):
            output = [_part(part, f"{where}.output[{i}]", "input_text")
                      for i, part in enumerate(output)]
        elif not isinstance(output, str):
            raise bad(f"{where}.output", f"is {short(output)}: give a text or a list of parts")
        # a result that names no call answers the one before it, as templates print it
        call_id = "" if item.get("call_id") is None else _label(item, "call_id", where)
        return {"id": _id(item, where, prefix), "type": item["type"],
                "status": _status(item, where), "call_id": call_id, "output": output}
    return make


def _reasoning(item: Item, where: str) -> Item:
    full: Item = {"id": _id(item, where, "rs"), "type": "reasoning",
                  "status": _status(item, where)}
    for name, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        parts = item.get(name)
        if not isinstance(parts, (list, type(None))):
            raise bad(f"{where}.{name}", f"is {short(parts)}: give a list of parts")
        full[name] = [{"type": kind, "text": _part_text(part, f"{where}.{name}[{i}]")}
                      for i, part in enumerate(parts or ())]
    if item.get("encrypted_content") is not None and not (full["summary"] or full["content"]):
        raise bad(f"{where}.encrypted_content", "can only be read by the server that wrote it: "
                   "give the reasoning as content, or leave the item out")
    return full


_KINDS: dict[str, Callable[[Item, str], Item]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _result("fco"),
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _result("ctco"),
    "reasoning": _reasoning,
}


# ---- messages


def messages_of(items: Sequence[Item], instructions: str | None) -> list[dict[str, Any]]:
    """Messages in the chat completions shape. Reasoning, text and calls in a row are one turn of
    the assistant. Takes items of `input_items` and of responses."""
    messages: list[dict[str, Any]] = []
    names: dict[str, str] = {}  # of the tools called, by call_id
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    turn: dict[str, Any] | None = None  # the assistant's, while more may belong to it
    for item in items:
        kind = item["type"]
        if kind.endswith("_output"):
            result = {"role": "tool", "tool_call_id": item["call_id"],
                      "content": _joined(item["output"])}
            if item["call_id"] in names:
                result["name"] = names[item["call_id"]]
            messages.append(result)
            turn = None
        elif kind == "message" and item["role"] != "assistant":
            messages.append({"role": item["role"], "content": _joined(item["content"])})
            turn = None
        else:
            if turn is None or not _fits(turn, kind):
                turn = {"role": "assistant", "content": None}
                messages.append(turn)
            _add_to_turn(turn, item, names)
    return messages


def _fits(turn: dict[str, Any], kind: str) -> bool:
    """Whether an item goes on with a turn: reasoning, then text, then calls."""
    if "tool_calls" in turn:
        return kind in ("function_call", "custom_tool_call")
    if kind == "reasoning":
        return turn["content"] is None
    return kind != "message" or turn["content"] is None


def _add_to_turn(turn: dict[str, Any], item: Item, names: dict[str, str]) -> None:
    kind = item["type"]
    if kind == "message":
        turn["content"] = _joined(item["content"])
    elif kind == "reasoning":
        text = _joined(item.get("content") or item.get("summary") or "")
        turn["reasoning"] = turn.get("reasoning", "") + text
    else:
        names[item["call_id"]] = item["name"]
        call: dict[str, Any] = {"id": item["call_id"]}
        if kind == "function_call":
            call["type"] = "function"
            call["function"] = {"name": item["name"], "arguments": item["arguments"]}
        else:
            call["type"] = "custom"
            call["custom"] = {"name": item["name"], "input": item["input"]}
        turn.setdefault("tool_calls", []).append(call)


def turn_starts(messages: Sequence[dict[str, Any]]) -> tuple[int, list[int]]:
    """(messages that begin a conversation and stay, where it could begin instead: at each later
    message of a user)."""
    kept = 0
    while kept < len(messages) and messages[kept]["role"] in ("system", "developer"):
        kept += 1
    return kept, [i for i in range(kept + 1, len(messages)) if messages[i]["role"] == "user"]


def _joined(content: str | list[Item]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part[_TEXT_PARTS[part["type"]]] for part in content)


# ---- fields of items


def _id(item: Item, where: str, prefix: str) -> str:
    given = item.get("id")
    if given is None or given == "":
        return f"{prefix}_{secrets.token_hex(24)}"
    if not isinstance(given, str) or len(given) > 128:
        raise bad(f"{where}.id", f"is {short(given)}: give a text of at most 128 characters, or "
                   "leave it out")
    return given


def _status(item: Item, where: str) -> str:
    given = item.get("status")
    if given is None:
        return "completed"
    if given not in _STATUSES:
        raise bad(f"{where}.status", f"is {short(given)}: give one of {', '.join(_STATUSES)}, "
                   "or leave it out")
    return str(given)


def _label(item: Item, name: str, where: str) -> str:
    """A name or id of an earlier call: it is only repeated, so it may be empty."""
    value = item.get(name)
    if not isinstance(value, str):
        raise bad(f"{where}.{name}", "is missing: give a text" if value is None else
                   f"is {short(value)}: give a text")
    return value


def is_object(text: str) -> bool:
    """Whether a text is a JSON object; nothing counts as one without properties."""
    if not text.strip():
        return True
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
