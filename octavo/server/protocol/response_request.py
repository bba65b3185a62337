"""The requests of /v1/responses, as typed fields with the wire's names. No meaning."""

from typing import Any

import msgspec

from octavo.server.protocol.requests import SamplingFields


class ResponseRequest(SamplingFields, kw_only=True):
    """POST /v1/responses. input: a text or a list of items; see server/openai_responses."""

    # What decides the prompt; InputTokensRequest has the same.
    input: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    truncation: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    store: bool = True
    metadata: dict[str, Any] | None = None
    include_reasoning: bool = True

    # Hints and labels: without effect here, echoed.
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    user: str | None = None
    service_tier: str | None = None

    # Known, and refused with a reason.
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    chat_template: Any = None
    background: bool = False
    moderation: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None

    # Known, and without effect here.
    prompt_cache_options: Any = None


class InputTokensRequest(msgspec.Struct, kw_only=True):
    """POST /v1/responses/input_tokens."""

    model: str | None = None
    input: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    truncation: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    # Known, and refused with a reason.
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    chat_template: Any = None

    # Known, and without effect here.
    personality: Any = None
