"""Parsed output -> content blocks, whole or as the events of a stream. Knows no engine."""

import json

import msgspec

from octavo.engine.outputs import CompletionOutput
from octavo.server.anthropic.conversation import TOOL_ID_PREFIX
from octavo.server.protocol.anthropic import (
    BlockDelta,
    BlockStart,
    BlockStop,
    ContentBlock,
    Event,
    InputJsonDelta,
    StopDelta,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from octavo.tools.parser import OutputDelta, ParsedOutput, ToolCall


def blocks_of(parsed: ParsedOutput, *, with_thinking: bool) -> list[ContentBlock]:
    """The blocks of a whole answer. There is always one: an empty text, if nothing was said."""
    blocks: list[ContentBlock] = []
    if parsed.reasoning and with_thinking:
        blocks.append(ThinkingBlock(parsed.reasoning))
    if parsed.content:
        blocks.append(TextBlock(parsed.content))
    blocks += [ToolUseBlock(id=_tool_id(call.call_id), name=call.name, input=_input(call))
               for call in parsed.calls]
    return blocks or [TextBlock()]


def stop_of(part: CompletionOutput, num_calls: int) -> StopDelta:
    """Why a finished sample ended, in this API's words."""
    if part.finish_reason == "length":
        is_own_bound = part.length_limit in (None, "max_tokens")
        reason = "max_tokens" if is_own_bound else "model_context_window_exceeded"
        return StopDelta(stop_reason=reason, stop_sequence=None)
    if isinstance(part.stop_reason, str):
        return StopDelta(stop_reason="stop_sequence", stop_sequence=part.stop_reason)
    return StopDelta(stop_reason="tool_use" if num_calls else "end_turn", stop_sequence=None)


class BlockStream:
    """The content of one streamed message: blocks one after another, never two open."""

    def __init__(self, *, with_thinking: bool) -> None:
        self._with_thinking = with_thinking
        self._num_blocks = 0
        self._open: str | None = None

    def news(self, delta: OutputDelta) -> list[Event]:
        """The events of a piece of output."""
        events: list[Event] = []
        if delta.reasoning and self._with_thinking:
            self._continue(ThinkingBlock(), "thinking", events)
            events.append(self._delta(ThinkingDelta(delta.reasoning)))
        if delta.content:
            self._continue(TextBlock(), "text", events)
            events.append(self._delta(TextDelta(delta.content)))
        for call in delta.calls:
            if call.name is not None:
                block = ToolUseBlock(id=_tool_id(call.call_id or ""), name=call.name)
                self._continue(block, f"call {call.index}", events)
            if call.arguments:
                events.append(self._delta(InputJsonDelta(call.arguments)))
        return events

    def end(self) -> list[Event]:
        """The end of the content."""
        events: list[Event] = []
        if not self._num_blocks:
            self._continue(TextBlock(), "text", events)
        self._close(events)
        return events

    def _continue(self, block: ContentBlock, what: str, events: list[Event]) -> None:
        """Opens a block, unless it is the one that is open."""
        if self._open == what:
            return
        self._close(events)
        self._open = what
        events.append(BlockStart(index=self._num_blocks, content_block=block))
        self._num_blocks += 1

    def _close(self, events: list[Event]) -> None:
        if self._open is not None:
            events.append(BlockStop(index=self._num_blocks - 1))
            self._open = None

    def _delta(self, delta: TextDelta | ThinkingDelta | InputJsonDelta) -> BlockDelta:
        return BlockDelta(index=self._num_blocks - 1, delta=delta)


def event_bytes(event: Event) -> bytes:
    """On the wire: clients drop events without an `event:` line."""
    return b"event: %s\ndata: %s\n\n" % (event.name.encode(), msgspec.json.encode(event))


def _tool_id(call_id: str) -> str:
    return TOOL_ID_PREFIX + call_id.removeprefix("call_")


def _input(call: ToolCall) -> dict[str, object]:
    """Of a call that max_tokens cut, nothing: half of an input is none."""
    try:
        value = json.loads(call.arguments or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
