"""The events of a streamed response as typed values; `type` comes from each struct's tag."""

import msgspec

from octavo.server.protocol.response_object import (
    OutputItem,
    OutputText,
    ReasoningText,
    ResponseObject,
)
from octavo.server.protocol.responses import ChatLogprob


class Event(msgspec.Struct, kw_only=True, tag_field="type"):
    """sequence_number: 0, 1, 2, ... in one stream."""

    sequence_number: int = 0


class _OfResponse(Event, kw_only=True):
    response: ResponseObject


class Created(_OfResponse, tag="response.created"):
    """The first event."""


class InProgress(_OfResponse, tag="response.in_progress"):
    """The second."""


class Completed(_OfResponse, tag="response.completed"):
    """The last one: it ended by itself."""


class Incomplete(_OfResponse, tag="response.incomplete"):
    """The last one: a bound was reached."""


class Failed(_OfResponse, tag="response.failed"):
    """The last one: an error ended it."""


class _OfItem(Event, kw_only=True):
    output_index: int
    item: OutputItem


class ItemAdded(_OfItem, tag="response.output_item.added"):
    """An item begins."""


class ItemDone(_OfItem, tag="response.output_item.done"):
    """An item is complete, or the response ended inside of it."""


class _InItem(Event, kw_only=True):
    item_id: str
    output_index: int


class _InContent(_InItem, kw_only=True):
    content_index: int = 0


class PartAdded(_InContent, kw_only=True, tag="response.content_part.added"):
    """A part of a message or of reasoning begins."""

    part: OutputText | ReasoningText


class PartDone(_InContent, kw_only=True, tag="response.content_part.done"):
    """A part is complete."""

    part: OutputText | ReasoningText


class TextDelta(_InContent, kw_only=True, tag="response.output_text.delta"):
    """More text of a message."""

    delta: str
    logprobs: list[ChatLogprob] = msgspec.field(default_factory=list)


class TextDone(_InContent, kw_only=True, tag="response.output_text.done"):
    """All the text of a message."""

    text: str
    logprobs: list[ChatLogprob] = msgspec.field(default_factory=list)


class ReasoningDelta(_InContent, kw_only=True, tag="response.reasoning_text.delta"):
    """More reasoning."""

    delta: str


class ReasoningDone(_InContent, kw_only=True, tag="response.reasoning_text.done"):
    """All the reasoning."""

    text: str


class ArgumentsDelta(_InItem, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(_InItem, kw_only=True, tag="response.function_call_arguments.done"):
    """All arguments of a call."""

    name: str
    arguments: str


class InputDelta(_InItem, kw_only=True, tag="response.custom_tool_call_input.delta"):
    """More input of a custom tool."""

    delta: str


class InputDone(_InItem, kw_only=True, tag="response.custom_tool_call_input.done"):
    """All the input of a custom tool."""

    input: str


class ErrorEvent(Event, kw_only=True, tag="error"):
    """What went wrong; response.failed follows."""

    code: str | None
    message: str
    param: str | None
