"""The answers of every route as typed values: their fields are the wire's, in its order.

UNSET fields are left out; None is written as null where clients' types demand the key.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class ErrorInfo(msgspec.Struct, kw_only=True):
    """The inside of an error object. code is a word, never a number."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct):
    """Every refusal and failure."""

    error: ErrorInfo


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """cached_tokens: prompt tokens whose KV came from the prefix cache."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, kw_only=True):
    """Of the completion tokens. A prediction is taken, and without effect."""

    reasoning_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class Usage(msgspec.Struct, kw_only=True):
    """Tokens of all choices together; each prompt counts once, whatever n is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class Timings(msgspec.Struct, kw_only=True):
    """Where the time of an answer went, with llama.cpp's names: prompt_n tokens were computed,
    cache_n more came from the prefix cache; predicted_n were drawn, in predicted_ms behind the
    first of them. Rates per token and second leave the first token out: it belongs to prompt_ms."""

    queued_ms: float
    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """One entry a token in each list; None stands before the first prompt token."""

    text_offset: list[int] = msgspec.field(default_factory=list)
    token_logprobs: list[float | None] = msgspec.field(default_factory=list)
    tokens: list[str] = msgspec.field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = msgspec.field(default_factory=list)


class TopLogprob(msgspec.Struct, kw_only=True):
    """A token that could have been drawn. bytes are exact where token shows U+FFFD."""

    token: str
    bytes: list[int]
    logprob: float


class ChatLogprob(msgspec.Struct, kw_only=True):
    """A drawn token, and the most likely ones at its place."""

    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """One entry for each drawn token."""

    content: list[ChatLogprob]
    refusal: None = None


class PromptLogprob(msgspec.Struct, kw_only=True):
    """vLLM's shape of one candidate at a prompt position."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """seed: what the noise was keyed with; sending it again gives the same text."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    seed: int | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class CompletionResponse(msgspec.Struct, kw_only=True):
    """POST /v1/completions, and (with usage None or UNSET) a chunk of its stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET


class FunctionCall(msgspec.Struct, kw_only=True):
    """arguments: JSON text; in a stream a piece of it."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class CustomCall(msgspec.Struct, kw_only=True):
    """input: a text; in a stream a piece of it."""

    name: str | UnsetType = UNSET
    input: str = ""


class ToolCallObject(msgspec.Struct, kw_only=True):
    """A call; in a stream news of one: index always, id, type and name once."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionCall | UnsetType = UNSET
    custom: CustomCall | UnsetType = UNSET


class ChatMessage(msgspec.Struct, kw_only=True):
    """The answer. Reasoning is under both names that clients look for."""

    role: str = "assistant"
    content: str | None
    refusal: None = None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallObject] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """seed: what the noise was keyed with; sending it again gives the same text."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None
    seed: int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatResponse(msgspec.Struct, kw_only=True):
    """POST /v1/chat/completions."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET


class ChatDelta(msgspec.Struct, kw_only=True):
    """What is new. The role is in the first chunk of a choice."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallObject] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """News of one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    seed: int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ModelCard(msgspec.Struct, kw_only=True):
    """One name of a served model. max_model_len: prompt and output together."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    parent: None = None
    max_model_len: int


class ModelList(msgspec.Struct, kw_only=True):
    """GET /v1/models."""

    object: str = "list"
    data: list[ModelCard]


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int | dict[str, Any]]
    token_strs: list[str] | None = None


class DetokenizeResponse(msgspec.Struct, kw_only=True):
    """POST /detokenize: the text under both names that clients look for."""

    prompt: str
    content: str


class RenderedChat(msgspec.Struct, kw_only=True):
    """POST /v1/chat/completions/render. count: of the token ids."""

    request_id: str
    model: str
    prompt: str
    token_ids: list[int]
    count: int


class AppliedTemplate(msgspec.Struct, kw_only=True):
    """POST /apply-template."""

    prompt: str
