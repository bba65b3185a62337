"""A response of /v1/responses and its items as typed values: their fields are the wire's.

None is written as null, UNSET is left out: OpenAI's published schema demands most of these keys,
and forbids a null for some.
"""

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from octavo.server.protocol.responses import ChatLogprob

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, kw_only=True, tag_field="type", tag="output_text"):
    """The text of a message. logprobs: one entry for each of its tokens, if asked for."""

    text: str = ""
    annotations: list[Any] = msgspec.field(default_factory=list)
    logprobs: list[ChatLogprob] = msgspec.field(default_factory=list)


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """A message of the assistant."""

    id: str
    status: ItemStatus = "in_progress"
    role: str = "assistant"
    content: list[OutputText] = msgspec.field(default_factory=list)


class ReasoningText(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """Reasoning as the model wrote it."""

    text: str = ""


class ReasoningItem(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """What the model thought before it answered. Nothing is summarized or encrypted here."""

    id: str
    status: ItemStatus = "in_progress"
    summary: list[Any] = msgspec.field(default_factory=list)
    content: list[ReasoningText] = msgspec.field(default_factory=list)
    encrypted_content: None = None


class FunctionCallItem(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function. arguments: JSON text."""

    id: str
    status: ItemStatus = "in_progress"
    call_id: str
    name: str
    arguments: str = ""


class CustomCallItem(msgspec.Struct, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool."""

    id: str
    status: ItemStatus = "in_progress"
    call_id: str
    name: str
    input: str = ""


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem | CustomCallItem


class InputTokensDetails(msgspec.Struct, kw_only=True):
    """cached_tokens: input tokens whose KV came from the prefix cache. Writing it costs nothing."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    """reasoning_tokens: of the output tokens, its tags included."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, kw_only=True):
    """Tokens of one response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, kw_only=True):
    """Why a response ended early."""

    reason: str


class ResponseError(msgspec.Struct, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """A response, also one that is still being made (output empty, no usage).

    seed: what the noise was keyed with; sending it again gives the same text.
    """

    id: str
    object: str = "response"
    created_at: int
    status: str = "in_progress"
    background: bool = False
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: list[OutputItem] = msgspec.field(default_factory=list)
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    reasoning: dict[str, Any]
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float
    text: dict[str, Any]
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]]
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | UnsetType = UNSET
    user: str | UnsetType = UNSET
    metadata: dict[str, str]
    seed: int | None = None


class ItemList(msgspec.Struct, kw_only=True):
    """GET /v1/responses/{id}/input_items: one page."""

    object: str = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(msgspec.Struct, kw_only=True):
    """DELETE /v1/responses/{id}."""

    id: str
    object: str = "response"
    deleted: bool = True


class InputTokens(msgspec.Struct, kw_only=True):
    """POST /v1/responses/input_tokens."""

    object: str = "response.input_tokens"
    input_tokens: int
