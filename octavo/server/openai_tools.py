"""Tools and reasoning in the shapes of OpenAI chat: request fields -> AnswerPlan, parsed output ->
message and delta fields. What they mean is the business of octavo/tools.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET

from octavo.core.refusals import short
from octavo.errors import InvalidRequestError
from octavo.server.protocol.requests import ChatRequest, TokenizeRequest
from octavo.server.protocol.responses import (
    ChatDelta,
    ChatMessage,
    CustomCall,
    FunctionCall,
    ToolCallObject,
)
from octavo.tools.definitions import (
    Tool,
    ToolChoice,
    check_choice,
    check_tools,
    custom_tool,
    function_tool,
)
from octavo.tools.parser import CallDelta, OutputDelta, ParsedOutput
from octavo.tools.plan import AnswerPlan, ModelFormats

REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def chat_plan(request: ChatRequest, formats: ModelFormats) -> AnswerPlan:
    """What a request wants beyond text. Raises InvalidRequestError naming the field."""
    if request.functions is not None or request.function_call is not None:
        if request.tools or request.tool_choice is not None:
            raise InvalidRequestError("functions and function_call are older names of tools and "
                                      "tool_choice: give one kind", param="functions")
        tools = _functions(request.functions)
        check_tools(tools, field="functions")
        choice = _function_choice(request.function_call)
        check_choice(choice, tools, field="function_call")
        return AnswerPlan(formats, tools, choice)
    tools = tools_of(request.tools)
    choice = choice_of(request.tool_choice, parallel=request.parallel_tool_calls)
    check_choice(choice, tools)
    return AnswerPlan(formats, tools, choice)


def tools_of(given: Sequence[Any] | None) -> list[Tool]:
    """The field `tools`. Takes the flat objects of the Responses API, too. Raises
    InvalidRequestError."""
    tools = []
    for index, item in enumerate(given or ()):
        where = f"tools[{index}]"
        if not isinstance(item, dict):
            raise InvalidRequestError(f"{where} is not an object", param=where)
        kind = item.get("type", "function" if "function" in item else None)
        if kind not in ("function", "custom"):
            raise InvalidRequestError(f"{where}.type is {short(kind)}: give 'function' or "
                                      "'custom'", param=f"{where}.type")
        is_flat = kind not in item and "name" in item
        inner, place = (item, where) if is_flat else (item.get(kind), f"{where}.{kind}")
        tools.append((function_tool if kind == "function" else custom_tool)(inner, place))
    check_tools(tools)
    return tools


def choice_of(given: Any, *, parallel: Any = None) -> ToolChoice:
    """The fields `tool_choice` and `parallel_tool_calls`. Raises InvalidRequestError."""
    if not isinstance(parallel, (bool, type(None))):
        raise InvalidRequestError(f"parallel_tool_calls is {short(parallel)}: give true or false",
                                  param="parallel_tool_calls")
    many = parallel is not False
    if given is None or given == "auto":
        return ToolChoice("auto", parallel=many)
    if given == "none":
        return ToolChoice("none")
    if given == "required":
        # Held to calls, a small model writes one after another for as long as it may: several
        # only where they are asked for.
        return ToolChoice("required", parallel=parallel is True)
    kind = given.get("type") if isinstance(given, dict) else None
    if kind in ("function", "custom"):
        # one call of that tool: a model that must call would else call it again and again
        return ToolChoice("required", (_chosen(given, kind, "tool_choice"),), parallel=False)
    if kind == "allowed_tools":
        return _allowed(given, parallel)
    raise InvalidRequestError(
        f"tool_choice is {short(given)}: give 'none', 'auto', 'required', or an object of type "
        "'function', 'custom' or 'allowed_tools'", param="tool_choice")


def _allowed(given: dict[str, Any], parallel: bool | None) -> ToolChoice:
    where = "tool_choice.allowed_tools"
    inner = given.get("allowed_tools", given)
    if not isinstance(inner, dict) or inner.get("mode") not in ("auto", "required"):
        raise InvalidRequestError(f"{where}.mode must be 'auto' or 'required'",
                                  param=f"{where}.mode")
    tools = inner.get("tools")
    if not isinstance(tools, list) or not tools:
        raise InvalidRequestError(f"{where}.tools is empty or no list: name the tools",
                                  param=f"{where}.tools")
    names = []
    for index, tool in enumerate(tools):
        place = f"{where}.tools[{index}]"
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind not in ("function", "custom"):
            raise InvalidRequestError(f"{place}.type must be 'function' or 'custom'",
                                      param=f"{place}.type")
        names.append(_chosen(tool, kind, place))
    many = parallel is True if inner["mode"] == "required" else parallel is not False
    return ToolChoice(inner["mode"], tuple(names), many)


def _chosen(given: dict[str, Any], kind: str, where: str) -> str:
    inner = given.get(kind, given)
    name = inner.get("name") if isinstance(inner, dict) else None
    if not isinstance(name, str):
        raise InvalidRequestError(f"{where}.{kind}.name is missing: name the tool",
                                  param=f"{where}.{kind}.name" if kind in given else where)
    return name


def _functions(given: Sequence[Any] | None) -> list[Tool]:
    return [function_tool(item, f"functions[{i}]") for i, item in enumerate(given or ())]


def _function_choice(given: Any) -> ToolChoice:
    if given is None or given == "auto":
        return ToolChoice("auto", parallel=False)
    if given == "none":
        return ToolChoice("none")
    name = given.get("name") if isinstance(given, dict) else None
    if not isinstance(name, str):
        raise InvalidRequestError(f"function_call is {short(given)}: give 'none', 'auto' or "
                                  '{"name": ...}', param="function_call")
    return ToolChoice("required", (name,), parallel=False)


def template_options(request: ChatRequest | TokenizeRequest) -> dict[str, Any]:
    """Variables for the template: the request's own, and what reasoning_effort says in the words
    that templates know. Raises InvalidRequestError."""
    effort = request.reasoning_effort if isinstance(request, ChatRequest) else None
    given = dict(request.chat_template_kwargs or {})
    if effort is None:
        return given
    if effort not in REASONING_EFFORTS:
        raise InvalidRequestError(f"reasoning_effort is {short(effort)}: give one of "
                                  f"{', '.join(REASONING_EFFORTS)}", param="reasoning_effort")
    if effort == "none":
        return {"enable_thinking": False, "thinking": False} | given
    return {"reasoning_effort": effort} | given


def plain_calls(messages: Sequence[Any]) -> list[Any]:
    """Messages with every kind of call as a function call with an object for arguments: older
    function_call and role "function", and calls of custom tools.

    Raises InvalidRequestError naming what is no call.
    """
    return [_plain_message(m, f"messages[{i}]") if isinstance(m, dict) else m
            for i, m in enumerate(messages)]


def _plain_message(message: dict[str, Any], where: str) -> dict[str, Any]:
    if message.get("role") == "function":
        return message | {"role": "tool", "content": message.get("content") or ""}
    call_id = message.get("tool_call_id")
    if message.get("role") == "tool" and not isinstance(call_id, (str, type(None))):
        raise InvalidRequestError(f"{where}.tool_call_id is {short(call_id)}: give the call's id",
                                  param=f"{where}.tool_call_id")
    if message.get("role") != "assistant":
        return message
    calls, place = message.get("tool_calls"), f"{where}.tool_calls"
    if calls is None and isinstance(message.get("function_call"), dict):
        calls, place = [{"type": "function", "function": message["function_call"]}], where
    if calls is None:
        return message
    if not isinstance(calls, list):
        raise InvalidRequestError(f"{place} is no list of calls", param=place)
    plain = {k: v for k, v in message.items() if k != "function_call"}
    plain["tool_calls"] = [_plain_call(c, f"{place}[{i}]") for i, c in enumerate(calls)]
    return plain if plain["tool_calls"] else {k: v for k, v in plain.items() if k != "tool_calls"}


def _plain_call(call: Any, where: str) -> dict[str, Any]:
    if not isinstance(call, dict):
        raise InvalidRequestError(f"{where} is not an object", param=where)
    kind = "custom" if "custom" in call else "function"
    inner = call.get(kind)
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise InvalidRequestError(f"{where}.{kind}.name is missing: name the tool",
                                  param=f"{where}.{kind}.name")
    if kind == "custom":
        function = {"name": inner["name"], "arguments": {"input": str(inner.get("input") or "")}}
        return {"id": call.get("id"), "type": "function", "function": function, "is_custom": True}
    place = f"{where}.function.arguments"
    arguments = inner.get("arguments")
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise InvalidRequestError(f"{place} is {short(arguments)}: give a JSON object as "
                                      "text", param=place) from None
    arguments = arguments or {}
    if not isinstance(arguments, Mapping):
        raise InvalidRequestError(f"{place} is {short(inner['arguments'])}: give a JSON object "
                                  "as text", param=place)
    return call | {"type": "function", "function": inner | {"arguments": arguments}}


# ---- answers


def message_of(parsed: ParsedOutput, *, with_reasoning: bool, as_function: bool) -> ChatMessage:
    """The message of a whole output. as_function: in the older shape, function_call."""
    message = ChatMessage(content=parsed.content or (None if parsed.calls or parsed.reasoning
                                                     else ""))
    if with_reasoning and parsed.reasoning:
        message.reasoning = message.reasoning_content = parsed.reasoning
    if parsed.calls and as_function:
        call = parsed.calls[0]
        message.function_call = FunctionCall(name=call.name, arguments=call.arguments)
    elif parsed.calls:
        message.tool_calls = [_call_object(c.call_id, c.name, c.arguments, c.is_custom)
                              for c in parsed.calls]
    return message


def fill_delta(delta: ChatDelta, news: OutputDelta, *, with_reasoning: bool,
               as_function: bool) -> None:
    """Puts a piece of an output into a chunk's delta."""
    if news.content:
        delta.content = news.content
    if with_reasoning and news.reasoning:
        delta.reasoning = delta.reasoning_content = news.reasoning
    if news.calls and as_function:
        call = news.calls[0]
        delta.function_call = FunctionCall(name=call.name or UNSET, arguments=call.arguments)
    elif news.calls:
        delta.tool_calls = [_call_delta(c) for c in news.calls]


def _call_object(call_id: str, name: str, arguments: str, is_custom: bool) -> ToolCallObject:
    if is_custom:
        return ToolCallObject(id=call_id, type="custom",
                              custom=CustomCall(name=name, input=arguments))
    return ToolCallObject(id=call_id, type="function",
                          function=FunctionCall(name=name, arguments=arguments))


def _call_delta(call: CallDelta) -> ToolCallObject:
    if call.name is not None:
        whole = _call_object(call.call_id or "", call.name, call.arguments, call.is_custom)
        whole.index = call.index
        return whole
    if call.is_custom:
        return ToolCallObject(index=call.index, custom=CustomCall(input=call.arguments))
    return ToolCallObject(index=call.index, function=FunctionCall(arguments=call.arguments))
