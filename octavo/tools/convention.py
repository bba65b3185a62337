"""Conversations with tools for templates that know none, and custom tools for those that do.

The tools are listed in the system message, calls are written into the assistant's text, and results
come back as the user's. docs/TOOLS.md shows the wording. Plain messages in, plain messages out.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.tools.definitions import Tool
from octavo.tools.formats import ToolFormat

Message = Mapping[str, Any]

_RESULT_OPEN, _RESULT_CLOSE = "<tool_response>\n", "\n</tool_response>"


def described(messages: Sequence[Any], tools: Sequence[Tool], form: ToolFormat) -> list[Any]:
    """The messages with these tools told of in the system message."""
    if not tools:
        return list(messages)
    text = _description(tools, form)
    first = messages[0] if messages else None
    if not (isinstance(first, Mapping) and first.get("role") in ("system", "developer")):
        return [{"role": "system", "content": text}, *messages]
    content = first.get("content")
    if isinstance(content, list):
        content = [*content, {"type": "text", "text": f"\n\n{text}"}]
    else:
        content = f"{content}\n\n{text}" if content else text
    return [{**first, "content": content}, *messages[1:]]


def spelled_out(messages: Sequence[Any], form: ToolFormat) -> list[Any]:
    """The messages with calls and results as text. What is malformed stays, to be refused."""
    result: list[Any] = []
    for message in messages:
        if not isinstance(message, Mapping):
            result.append(message)
        elif message.get("role") == "tool":
            text = f"{_RESULT_OPEN}{_text(message.get('content'))}{_RESULT_CLOSE}"
            last = result[-1] if result else {}
            if isinstance(last, dict) and last.get("is_results"):
                last["content"] += f"\n{text}"
            else:
                result.append({"role": "user", "content": text, "is_results": True})
        elif message.get("role") == "assistant" and message.get("tool_calls"):
            calls = form.write([_call(c) for c in message["tool_calls"]])
            before = _text(message.get("content"))
            kept = {k: v for k, v in message.items() if k != "tool_calls"}
            result.append(kept | {"content": f"{before}\n{calls}" if before else calls})
        else:
            result.append(message)
    return [{k: v for k, v in m.items() if k != "is_results"} if isinstance(m, dict) else m
            for m in result]


def for_template(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Function tools as chat templates print them."""
    return [{"type": "function", "function": {
        "name": tool.name, "description": tool.description,
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }} for tool in tools if not tool.is_custom]


def _description(tools: Sequence[Tool], form: ToolFormat) -> str:
    functions = [t for t in tools if not t.is_custom]
    customs = [t for t in tools if t.is_custom]
    parts = []
    if functions:
        listed = "\n".join(json.dumps(t["function"], ensure_ascii=False)
                           for t in for_template(functions))
        parts.append("You can call functions. Here they are, with JSON Schemas of their "
                     f"arguments:\n<tools>\n{listed}\n</tools>\n"
                     "To call one, answer in this form, with the function's name and its "
                     f"arguments:\n{form.write([('NAME', {'ARGUMENT': 'VALUE'})])}")
    for tool in customs:
        about = f": {tool.description}" if tool.description else ""
        rule = f"\nIts text must match this {tool.syntax} grammar:\n{tool.definition}" if (
            tool.syntax) else ""
        parts.append(f"You can call {tool.name}{about}\nTo call it, answer in this form:\n"
                     f"{form.write([(tool.name, 'TEXT')])}{rule}")
    parts.append("Results come back in <tool_response> blocks. Where no call is needed, answer "
                 "in plain text.")
    return "\n\n".join(parts)


def _call(call: Mapping[str, Any]) -> tuple[str, Any]:
    """(name, arguments) of a call in a conversation."""
    function = call.get("function", call)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = json.loads(arguments) if arguments.strip() else {}
    arguments = arguments or {}
    if call.get("is_custom"):
        arguments = arguments.get("input", "")
    return str(function.get("name")), arguments


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(p if isinstance(p, str) else str(p.get("text", "")) for p in content
                       if isinstance(p, (str, Mapping)))
    return content if isinstance(content, str) else ""
