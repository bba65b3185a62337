"""Fields of a Messages request, beside its conversation -> AnswerPlan, the shared chat request and
SamplingParams. Knows no content blocks.
"""

import dataclasses
from typing import Any

import msgspec

from octavo.core.refusals import bad, short
from octavo.core.sampling_params import SamplingParams
from octavo.core.structured_outputs import StructuredOutputs
from octavo.server.openai_tools import REASONING_EFFORTS
from octavo.server.params import chat_params
from octavo.server.planned import fields_named
from octavo.server.protocol.anthropic import MessagesRequest
from octavo.server.protocol.requests import ChatRequest, SamplingFields
from octavo.server.state import ServerState
from octavo.tools.definitions import Tool, ToolChoice, check_choice, check_tools, function_tool
from octavo.tools.plan import AnswerPlan, ModelFormats

# this API's name of what the shared code knows under another one
FIELD_NAMES = {"stop": "stop_sequences", "reasoning_effort": "output_config.effort"}
_THINKING = ("enabled", "disabled", "adaptive", "between_tools")
_DISPLAYS = (None, "summarized", "omitted")
_CHOICES = ("auto", "any", "tool", "none")


@dataclasses.dataclass(slots=True, frozen=True)
class Thinking:
    """enabled: None leaves it to the template. shown: whether the answer has thinking blocks."""

    enabled: bool | None = None
    shown: bool = True


def plan_of(asked: MessagesRequest, formats: ModelFormats) -> AnswerPlan:
    """What a request wants beyond text. Raises InvalidRequestError naming the field."""
    tools = [_tool(item, f"tools[{i}]") for i, item in enumerate(asked.tools or ())]
    check_tools(tools)
    choice = _choice(asked.tool_choice)
    check_choice(choice, tools)
    return AnswerPlan(formats, tools, choice)


def _tool(given: Any, where: str) -> Tool:
    if not isinstance(given, dict):
        raise bad(where, f"is {short(given)}: give an object")
    kind = given.get("type")
    if kind not in (None, "custom"):
        raise bad(f"{where}.type", f"is {short(kind)}: this server runs no tools of its own, "
                   "give tools with an input_schema, whose calls you run")
    if given.get("input_schema") is None:
        raise bad(f"{where}.input_schema", "is missing: give a JSON Schema of an object")
    function = {"name": given.get("name"), "description": given.get("description"),
                "parameters": given["input_schema"], "strict": given.get("strict")}
    with fields_named({f"{where}.parameters": f"{where}.input_schema"}):
        return function_tool(function, where)


def _choice(given: Any) -> ToolChoice:
    if given is None:
        return ToolChoice("auto")
    kind = given.get("type") if isinstance(given, dict) else None
    if kind not in _CHOICES:
        raise bad("tool_choice", f"is {short(given)}: give an object whose type is "
                   "'auto', 'any', 'tool' or 'none'")
    single = given.get("disable_parallel_tool_use")
    if not isinstance(single, (bool, type(None))):
        raise bad("tool_choice.disable_parallel_tool_use",
                   f"is {short(single)}: give true or false")
    if kind == "none":
        return ToolChoice("none")
    if kind == "auto":
        return ToolChoice("auto", parallel=not single)
    if kind == "any":
        # Held to calls, a small model writes one after another for as long as it may: several
        # only where they are asked for.
        return ToolChoice("required", parallel=single is False)
    name = given.get("name")
    if not isinstance(name, str):
        raise bad("tool_choice.name", "is missing: name the tool")
    return ToolChoice("required", (name,), parallel=False)


def thinking_of(given: Any) -> Thinking:
    """The field `thinking`. A budget is checked and goes no further: how long a model thinks is
    its own affair, max_tokens bounds it. Raises InvalidRequestError."""
    if given is None:
        return Thinking()
    kind = given.get("type") if isinstance(given, dict) else None
    if kind not in _THINKING:
        raise bad("thinking.type" if isinstance(given, dict) else "thinking",
                   f"is {short(kind or given)}: give one of {', '.join(_THINKING)}")
    budget, display = given.get("budget_tokens"), given.get("display")
    if budget is not None and (type(budget) is not int or budget < 1):
        raise bad("thinking.budget_tokens", f"is {short(budget)}: give a number of tokens")
    if display not in _DISPLAYS:
        raise bad("thinking.display", f"is {short(display)}: give 'summarized' or 'omitted'")
    enabled = {"enabled": True, "disabled": False}.get(kind)
    return Thinking(enabled, shown=enabled is not False and display != "omitted")


def chat_request(asked: MessagesRequest, messages: list[Any], *, continues: bool) -> ChatRequest:
    """The request that shared code understands; without tools, which are the plan's."""
    options = dict(asked.chat_template_kwargs or {})
    enabled = thinking_of(asked.thinking).enabled
    if enabled is not None:
        options = {"enable_thinking": enabled, "thinking": enabled} | options
    request = ChatRequest(messages=messages, continue_final_message=continues,
                          chat_template_kwargs=options, reasoning_effort=_effort(asked))
    for name in SamplingFields.__struct_fields__:
        setattr(request, name, getattr(asked, name))
    if asked.stop_sequences is not None:
        request.stop = asked.stop_sequences
    return request


def message_params(asked: MessagesRequest, request: ChatRequest, state: ServerState
                   ) -> SamplingParams:
    """Raises InvalidRequestError naming the field."""
    if asked.max_tokens is None:
        raise bad("max_tokens", "is missing: it is required")
    if asked.n != 1:
        raise bad("n", f"is {asked.n}: this API answers with one message")
    if asked.stop is not None and asked.stop_sequences is not None:
        raise bad("stop", "and stop_sequences are given: give one of them")
    for name in ("prompt_logprobs", "return_token_ids"):
        if getattr(asked, name) not in (None, False):
            raise bad(name, "has no place in this API's answer: leave it out")
    params = chat_params(request, state)
    wanted = _form(asked)
    if wanted is None:
        return params
    if params.structured_outputs is not None:
        raise bad(params.structured_outputs.field, f"and {wanted.field} are given: give one of "
                   "them")
    return msgspec.structs.replace(params, structured_outputs=wanted)


def refuse_elsewhere(asked: MessagesRequest) -> None:
    """What needs another machine than a model. Raises InvalidRequestError."""
    for name, why in (("container", "this server runs no code"),
                      ("mcp_servers", "this server calls no others, run the tools yourself")):
        if getattr(asked, name):
            raise bad(name, f"is not accepted: {why}")


def _form(asked: MessagesRequest) -> StructuredOutputs | None:
    """output_config.format, or output_format, as it was called before."""
    places = {"output_config.format": _config(asked).get("format"),
              "output_format": asked.output_format}
    given = {field: form for field, form in places.items() if form is not None}
    if not given:
        return None
    if len(given) > 1:
        raise bad("output_format", "and output_config.format are given: give one of them")
    [(field, form)] = given.items()
    if not isinstance(form, dict) or form.get("type") != "json_schema":
        raise bad(field, f"is {short(form)}: give {{'type': 'json_schema', 'schema': ...}}")
    if form.get("schema") is None:
        raise bad(f"{field}.schema", "is missing: give a JSON Schema")
    return StructuredOutputs(json=form["schema"], field=field)


def _effort(asked: MessagesRequest) -> Any:
    effort = _config(asked).get("effort")
    if effort is not None and (effort == "none" or effort not in REASONING_EFFORTS):
        raise bad("output_config.effort", f"is {short(effort)}: give one of "
                   f"{', '.join(e for e in REASONING_EFFORTS if e != 'none')}")
    return effort


def _config(asked: MessagesRequest) -> dict[str, Any]:
    config = asked.output_config
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise bad("output_config", f"is {short(config)}: give an object")
    return config
