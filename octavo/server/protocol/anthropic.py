"""Anthropic's Messages API on the wire: the request, the answer and its events. No meaning.

Structs with a tag carry it as `type`.
"""

from typing import Any, ClassVar

import msgspec

from octavo.server.protocol.requests import SamplingFields


class MessagesRequest(SamplingFields, kw_only=True):
    """POST /v1/messages and /v1/messages/count_tokens. max_tokens is required by the first."""

    messages: list[Any]
    system: Any = None
    stop_sequences: list[str] | None = None
    thinking: Any = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    output_config: Any = None
    output_format: Any = None
    chat_template_kwargs: dict[str, Any] | None = None

    # Known, and refused with a reason.
    container: Any = None
    mcp_servers: list[Any] | None = None

    # Known, and without effect here: hints, labels, accounting.
    betas: Any = None
    cache_control: Any = None
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None


class AnthropicErrorInfo(msgspec.Struct, kw_only=True):
    """The inside of an error object."""

    type: str
    message: str


class AnthropicErrorResponse(msgspec.Struct, kw_only=True, tag_field="type", tag="error"):
    """Every refusal and failure, and the event `error` of a stream."""

    error: AnthropicErrorInfo
    request_id: str | None = None


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Text of the answer."""

    text: str = ""


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """Reasoning. Nothing here is signed: the signature is empty."""

    thinking: str = ""
    signature: str = ""


class ToolUseBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: dict[str, Any] = msgspec.field(default_factory=dict)


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesUsage(msgspec.Struct, kw_only=True):
    """The prompt's tokens are input_tokens + cache_read_input_tokens; nothing is billed, so that
    no token counts as written to the cache."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class Message(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """The answer in one piece; in the event message_start without content and reason."""

    id: str
    role: str = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessagesUsage


class TokenCount(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens."""

    input_tokens: int


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """More of a text block."""

    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """More of a thinking block."""

    thinking: str


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """More of the JSON text of a call's input."""

    partial_json: str


class StopDelta(msgspec.Struct, kw_only=True):
    """Why the message ended."""

    stop_reason: str | None
    stop_sequence: str | None


class Event(msgspec.Struct):
    """An event of a stream. `name` is its type, and the name on its `event:` line."""

    name: ClassVar[str]


class MessageStart(Event, tag_field="type", tag="message_start"):
    """First."""

    name: ClassVar[str] = "message_start"
    message: Message


class BlockStart(Event, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    name: ClassVar[str] = "content_block_start"
    index: int
    content_block: ContentBlock


class BlockDelta(Event, tag_field="type", tag="content_block_delta"):
    """More of the open block."""

    name: ClassVar[str] = "content_block_delta"
    index: int
    delta: TextDelta | ThinkingDelta | InputJsonDelta


class BlockStop(Event, tag_field="type", tag="content_block_stop"):
    """The open block is complete."""

    name: ClassVar[str] = "content_block_stop"
    index: int


class MessageDelta(Event, tag_field="type", tag="message_delta"):
    """The end's reason, and the usage of the whole message."""

    name: ClassVar[str] = "message_delta"
    delta: StopDelta
    usage: MessagesUsage


class MessageStop(Event, tag_field="type", tag="message_stop"):
    """Last."""

    name: ClassVar[str] = "message_stop"


class Ping(Event, tag_field="type", tag="ping"):
    """Nothing: the connection lives."""

    name: ClassVar[str] = "ping"
