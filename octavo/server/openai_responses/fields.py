"""The plain fields of a request: refusals, the plan of tools, the form of the text, and what a
response repeats. Knows no engine, no items and no HTTP.
"""

from collections.abc import Sequence
from typing import Any

from octavo.core.refusals import bad, short
from octavo.core.structured_outputs import StructuredOutputs
from octavo.server.openai_tools import REASONING_EFFORTS, choice_of, tools_of
from octavo.server.protocol.response_request import InputTokensRequest, ResponseRequest
from octavo.tools.definitions import Tool, check_choice
from octavo.tools.plan import AnswerPlan, ModelFormats

_LOGPROBS = "message.output_text.logprobs"
# Only the first does anything: the other parts never occur here, and reasoning is not encrypted.
_INCLUDABLE = (
    _LOGPROBS, "reasoning.encrypted_content", "file_search_call.results",
    "web_search_call.results", "web_search_call.action.sources", "code_interpreter_call.outputs",
    "computer_call_output.output.image_url", "message.input_image.image_url")
_VERBOSITIES = ("low", "medium", "high")
_SUMMARIES = ("auto", "concise", "detailed", "none")
_MAX_METADATA, _MAX_KEY_CHARS, _MAX_VALUE_CHARS = 16, 64, 512  # OpenAI's bounds
_MAX_LABEL_CHARS = 512  # user, safety_identifier, prompt_cache_key


def refuse_conversation(request: ResponseRequest | InputTokensRequest) -> None:
    """What both kinds of request may not ask for. Raises InvalidRequestError naming the field."""
    for name, why in (
        ("conversation", "use previous_response_id, or send all items in input"),
        ("prompt", "prompt templates are not kept here: send instructions and input"),
        ("context_management", "nothing is compacted here: use truncation='auto'"),
        ("chat_template", "only the server sets it, with --chat-template FILE"),
    ):
        if getattr(request, name):
            raise bad(name, f"is not supported: {why}")
    if request.truncation not in (None, "auto", "disabled"):
        raise bad("truncation", f"is {short(request.truncation)}: give 'auto' or 'disabled'")


def refuse_create(request: ResponseRequest) -> None:
    """What a response may not ask for beyond that. Raises InvalidRequestError naming the field."""
    if request.background:
        raise bad("background", "is true: responses are made while the client waits, set it to "
                   "false (and stream=true to see them grow)")
    if request.moderation:
        raise bad("moderation", "is not supported: this server moderates nothing")
    for name in ("max_tokens", "max_completion_tokens"):
        if getattr(request, name) is not None:
            raise bad(name, "is a field of chat completions: here it is max_output_tokens")
    if request.response_format is not None:
        raise bad("response_format", "is a field of chat completions: here it is text.format")
    if request.n != 1:
        raise bad("n", f"is {request.n}: a response has one output, send several requests")
    for name in ("prompt_logprobs", "return_token_ids"):
        if getattr(request, name):
            raise bad(name, "has no place in a response: use /v1/chat/completions")
    for name, least in (("max_output_tokens", 1), ("max_tool_calls", 0)):
        value = getattr(request, name)
        if value is not None and value < least:
            raise bad(name, f"is {value}: give at least {least}")
    for name in ("user", "safety_identifier", "prompt_cache_key", "service_tier"):
        if len(getattr(request, name) or "") > _MAX_LABEL_CHARS:
            raise bad(name, f"is longer than {_MAX_LABEL_CHARS} characters")
    if request.prompt_cache_retention not in (None, "in_memory", "24h"):
        raise bad("prompt_cache_retention", f"is {short(request.prompt_cache_retention)}: give "
                   "'in_memory' or '24h'")
    _check_metadata(request.metadata or {})


def num_logprobs(request: ResponseRequest) -> int | None:
    """How many candidates each token's logprobs have; None: there are no logprobs. Raises
    InvalidRequestError."""
    asked = request.include or ()
    for index, name in enumerate(asked):
        if name not in _INCLUDABLE:
            raise bad(f"include[{index}]", f"is {short(name)}: give some of "
                       f"{', '.join(_INCLUDABLE)}")
    if _LOGPROBS in asked or request.top_logprobs:
        return request.top_logprobs or 0
    return None


def plan_of(request: ResponseRequest | InputTokensRequest, formats: ModelFormats) -> AnswerPlan:
    """What a request wants beyond text. Raises InvalidRequestError naming the field."""
    tools = tools_of(request.tools)
    choice = choice_of(request.tool_choice, parallel=request.parallel_tool_calls)
    check_choice(choice, tools)
    return AnswerPlan(formats, tools, choice)


def text_format(text: dict[str, Any] | None) -> StructuredOutputs | None:
    """The form that `text` asks for; None for free text. Raises InvalidRequestError."""
    verbosity = (text or {}).get("verbosity")
    if verbosity not in (None, *_VERBOSITIES):
        raise bad("text.verbosity", f"is {short(verbosity)}: give one of "
                   f"{', '.join(_VERBOSITIES)}")
    field = "text.format"
    given = (text or {}).get("format")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise bad(field, f"is {short(given)}: give an object")
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputs(json_object=True, field=field)
    if kind != "json_schema":
        raise bad(f"{field}.type", f"is {short(kind)}: give 'text', 'json_object' or "
                   "'json_schema'")
    if given.get("schema") is None:
        raise bad(f"{field}.schema", "is missing: give a JSON Schema")
    if not isinstance(given.get("strict"), (bool, type(None))):
        raise bad(f"{field}.strict", f"is {short(given['strict'])}: give true or false; the "
                   "schema is enforced either way")
    return StructuredOutputs(json=given["schema"], field=field)


def reasoning_effort(request: ResponseRequest | InputTokensRequest) -> str | None:
    """Raises InvalidRequestError naming the part of `reasoning`."""
    given = request.reasoning or {}
    effort = given.get("effort")
    if effort not in (None, *REASONING_EFFORTS):
        raise bad("reasoning.effort", f"is {short(effort)}: give one of "
                   f"{', '.join(REASONING_EFFORTS)}")
    for name in ("summary", "generate_summary"):
        if given.get(name) not in (None, *_SUMMARIES):
            raise bad(f"reasoning.{name}", f"is {short(given[name])}: give one of "
                       f"{', '.join(_SUMMARIES)}; reasoning comes whole, not as a summary")
    return effort


# ---- what a response repeats


def echoed_text(text: dict[str, Any] | None) -> dict[str, Any]:
    """`text` with its defaults."""
    given = {k: v for k, v in (text or {}).items() if v is not None}
    return {"format": {"type": "text"}, "verbosity": "medium"} | given


def echoed_reasoning(reasoning: dict[str, Any] | None) -> dict[str, Any]:
    """`reasoning` with its defaults."""
    return {"effort": None, "summary": None} | (reasoning or {})


def echoed_tools(tools: Sequence[Any]) -> list[dict[str, Any]]:
    """The tools of a request, in the flat shape of this API."""
    return [_echoed_custom(tool) if tool.is_custom else {
        "type": "function", "name": tool.name, "description": tool.description or None,
        "parameters": tool.parameters, "strict": tool.strict} for tool in tools]


def _echoed_custom(tool: Tool) -> dict[str, Any]:
    form: dict[str, Any] = {"type": "text"}
    if tool.syntax is not None:
        form = {"type": "grammar", "syntax": tool.syntax, "definition": tool.definition}
    return {"type": "custom", "name": tool.name, "description": tool.description, "format": form}


def _check_metadata(metadata: dict[str, Any]) -> None:
    if len(metadata) > _MAX_METADATA:
        raise bad("metadata", f"has {len(metadata)} entries, and may have {_MAX_METADATA}")
    for key, value in metadata.items():
        if len(key) > _MAX_KEY_CHARS:
            raise bad("metadata", f"has the key {short(key)}, longer than {_MAX_KEY_CHARS} "
                       "characters")
        if not isinstance(value, str) or len(value) > _MAX_VALUE_CHARS:
            raise bad("metadata", f"has {short(value)} under {short(key)}: give a text of at "
                       f"most {_MAX_VALUE_CHARS} characters")
