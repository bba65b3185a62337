"""Fields of Ollama's requests -> the shared chat request and SamplingParams. Refuses what would
change the answer and cannot be done.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.core.refusals import bad, short
from octavo.core.sampling_params import SamplingParams
from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import InvalidRequestError, ModelNotFoundError
from octavo.server.openai_tools import REASONING_EFFORTS
from octavo.server.params import chat_params
from octavo.server.protocol.decode import typed_request
from octavo.server.protocol.ollama import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaOptions,
    OllamaRequest,
)
from octavo.server.protocol.requests import ChatRequest
from octavo.server.state import ServerState

_LATEST = ":latest"
# this API's name of what the shared code knows under another one
FIELD_NAMES = {
    **{name: f"options.{name}" for name in (
        "temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty",
        "frequency_penalty")},
    "max_tokens": "options.num_predict", "repetition_penalty": "options.repeat_penalty",
    "reasoning_effort": "think",
}
_ROLES = ("system", "user", "assistant", "tool")
_DURATION = re.compile(r"-?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h)?)+")
# options whose neutral value asks for nothing
_NEUTRAL = {"mirostat": 0, "tfs_z": 1, "typical_p": 1}


def model_of(asked: str | None, state: ServerState) -> str:
    """The name as asked, where it is served under it, or under it without ":latest". Raises
    InvalidRequestError, ModelNotFoundError."""
    if not asked:
        raise InvalidRequestError("model is required", param="model")
    if asked in state.names or asked.removesuffix(_LATEST) in state.names:
        return asked
    shown = asked if len(asked) <= 200 else asked[:197] + "..."
    raise ModelNotFoundError(f"model {shown!r} not found: this server has "
                             f"{', '.join(state.names)}", param="model")


def tagged(name: str) -> str:
    """A served name as this API lists it: with a tag."""
    return name if ":" in name.rpartition("/")[2] else name + _LATEST


def chat_request(asked: OllamaRequest, messages: list[Any], state: ServerState) -> ChatRequest:
    """The request that shared code understands. Raises InvalidRequestError."""
    given = typed_request(asked.options or {}, OllamaOptions,
                          strict=state.section.strict_params, where="options.")
    for name, neutral in _NEUTRAL.items():
        if getattr(given, name) not in (None, neutral):
            raise bad(f"options.{name}", f"is {getattr(given, name)}: this sampler has no such "
                       "step, leave it out")
    # -1 and -2 mean without end, and until the context is full: here they are the same
    bound = None if given.num_predict in (-1, -2) else given.num_predict
    request = ChatRequest(
        messages=messages, stream=asked.stream, temperature=given.temperature, top_p=given.top_p,
        top_k=given.top_k, min_p=given.min_p, seed=given.seed, max_tokens=bound, stop=given.stop,
        repetition_penalty=given.repeat_penalty, presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty, logprobs=asked.logprobs,
        top_logprobs=asked.top_logprobs)
    _set_thinking(request, asked.think, state)
    return request


def _set_thinking(request: ChatRequest, think: Any, state: ServerState) -> None:
    if think is None:
        return
    if think is False:
        request.reasoning_effort = "none"
        return
    if think is not True and think not in REASONING_EFFORTS[1:]:
        raise bad("think", f"is {short(think)}: give true, false, or one of "
                   f"{', '.join(REASONING_EFFORTS[1:])}")
    if not state.formats.reasoning:
        raise bad("think", f"is {short(think)}, and {state.names[0]!r} does not support thinking")
    request.chat_template_kwargs = {"enable_thinking": True, "thinking": True}
    if think is not True:
        request.reasoning_effort = think


def sampling_params(asked: OllamaRequest, request: ChatRequest, state: ServerState
                    ) -> SamplingParams:
    """Raises InvalidRequestError naming the field."""
    check_keep_alive(asked.keep_alive)
    params = chat_params(request, state)
    form = asked.format
    if form in (None, ""):
        return params
    if form == "json":
        wanted = StructuredOutputs(json_object=True, field="format")
    elif isinstance(form, dict):
        wanted = StructuredOutputs(json=form, field="format")
    else:
        raise bad("format", f"is {short(form)}: give 'json' or a JSON Schema")
    return msgspec.structs.replace(params, structured_outputs=wanted)


def check_keep_alive(given: Any) -> bool:
    """Whether the model shall stay. The one that is served always does. Raises
    InvalidRequestError."""
    if given is None:
        return True
    if isinstance(given, str) and _DURATION.fullmatch(given):
        return re.search("[1-9]", given) is not None
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return given != 0
    raise bad("keep_alive", f"is {short(given)}: give seconds, or a text like '5m'")


def refuse_generate(asked: OllamaGenerateRequest) -> None:
    """Raises InvalidRequestError naming the field."""
    for name, why in (
        ("suffix", "/v1/completions takes it, where the model can fill a gap"),
        ("template", "only the server sets it, with --chat-template FILE"),
        ("images", "this server only takes text"),
        ("width", "this server makes no images"), ("height", "this server makes no images"),
        ("steps", "this server makes no images"),
    ):
        if getattr(asked, name):
            raise bad(name, f"is not accepted: {why}")
    if asked.raw and (asked.system or asked.context):
        raise bad("raw", "mode takes no system and no context: put them into the prompt")


def chat_messages(asked: OllamaChatRequest) -> list[Any]:
    """Messages in the chat completions shape. Raises InvalidRequestError naming the place."""
    result: list[Any] = []
    open_ids: list[str] = []  # calls have no ids here: results come in the calls' order
    num_calls = 0
    for index, message in enumerate(asked.messages or ()):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise bad(where, f"is {short(message)}: give an object with role and content")
        role, content = message.get("role"), message.get("content") or ""
        if role not in _ROLES:
            raise bad(f"{where}.role", f"is {short(role)}: give one of {', '.join(_ROLES)}")
        if not isinstance(content, str):
            raise bad(f"{where}.content", f"is {short(content)}: give a text")
        if message.get("images"):
            raise bad(f"{where}.images", "is not accepted: this server only takes text")
        turn: dict[str, Any] = {"role": role, "content": content}
        if isinstance(message.get("thinking"), str):
            turn["reasoning"] = message["thinking"]
        if role == "assistant" and message.get("tool_calls"):
            calls = _calls(message["tool_calls"], f"{where}.tool_calls", num_calls)
            num_calls += len(calls)
            open_ids = [call["id"] for call in calls]
            turn["tool_calls"] = calls
        elif role == "tool":
            turn["tool_call_id"] = open_ids.pop(0) if open_ids else _call_id(num_calls)
            if isinstance(message.get("tool_name"), str):
                turn["name"] = message["tool_name"]
        result.append(turn)
    return result


def _calls(given: Any, where: str, first: int) -> list[dict[str, Any]]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise bad(where, f"is {short(given)}: give a list of calls")
    calls = []
    for index, call in enumerate(given):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad(f"{where}[{index}].function.name", "is missing: name the tool")
        arguments = function.get("arguments") or {}
        if not isinstance(arguments, dict):
            raise bad(f"{where}[{index}].function.arguments",
                       f"is {short(arguments)}: give an object")
        calls.append({"id": _call_id(first + index), "type": "function", "function": {
            "name": function["name"], "arguments": arguments}})
    return calls


def _call_id(number: int) -> str:
    """Nine letters and digits, which every template takes."""
    return f"call{number % 100_000:05d}"
