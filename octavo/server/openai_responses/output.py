"""What the model writes -> output items and the events that tell of them, in the order clients
demand. The same code makes whole answers: there, nobody hears the events.

Knows no request, no engine and no HTTP.
"""

import secrets
from collections.abc import Callable, Sequence

from octavo.server.protocol.response_events import (
    ArgumentsDelta,
    ArgumentsDone,
    Event,
    InputDelta,
    InputDone,
    ItemAdded,
    ItemDone,
    PartAdded,
    PartDone,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    TextDone,
)
from octavo.server.protocol.response_object import (
    CustomCallItem,
    FunctionCallItem,
    ItemStatus,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from octavo.server.protocol.responses import ChatLogprob
from octavo.tools.parser import CallDelta, OutputDelta


class OutputItems:
    """The items of one response, growing. At most the last one is open.

    An event that shows an item shows it as it is at that moment: send it before the next change.

    emit: hears of every change, in order.
    """

    def __init__(self, emit: Callable[[Event], None] = lambda event: None, *,
                 with_reasoning: bool = True) -> None:
        self.items: list[OutputItem] = []
        self._emit = emit
        self._with_reasoning = with_reasoning
        self._open: OutputItem | None = None

    @property
    def in_message(self) -> bool:
        """Whether the open item is a message."""
        return isinstance(self._open, OutputMessage)

    def add(self, news: OutputDelta, logprobs: Sequence[ChatLogprob] = ()) -> None:
        """What a piece of the output has brought. logprobs: of tokens of its content, or, without
        any, of the open message's."""
        if news.reasoning and self._with_reasoning:
            self._add_reasoning(news.reasoning)
        if news.content or logprobs:
            self._add_content(news.content, logprobs)
        for call in news.calls:
            self._add_call(call)

    def finish(self, *, is_cut: bool) -> None:
        """The end. is_cut: a bound was reached, so that the open item is incomplete."""
        if self._open is None or (not is_cut and not self._has_answer()):
            # clients look for a message even where the model said nothing
            self._close("completed")
            if not self._has_answer():
                self._add_content("", ())
        self._close("incomplete" if is_cut else "completed")

    def _has_answer(self) -> bool:
        return any(not isinstance(item, ReasoningItem) for item in self.items)

    def _add_reasoning(self, text: str) -> None:
        item = self._open
        if not isinstance(item, ReasoningItem):
            item = ReasoningItem(id=_new_id("rs"))
            self._begin(item)
            self._begin_part(item, ReasoningText())
        item.content[0].text += text
        self._emit(ReasoningDelta(item_id=item.id, output_index=self._index, delta=text))

    def _add_content(self, text: str, logprobs: Sequence[ChatLogprob]) -> None:
        item = self._open
        if not isinstance(item, OutputMessage):
            item = OutputMessage(id=_new_id("msg"))
            self._begin(item)
            self._begin_part(item, OutputText())
        part = item.content[0]
        part.text += text
        part.logprobs += logprobs
        if text or logprobs:
            self._emit(TextDelta(item_id=item.id, output_index=self._index, delta=text,
                                 logprobs=list(logprobs)))

    def _add_call(self, call: CallDelta) -> None:
        if call.name is not None:
            kind, prefix = ((CustomCallItem, "ctc") if call.is_custom
                            else (FunctionCallItem, "fc"))
            self._begin(kind(id=_new_id(prefix), call_id=call.call_id or "", name=call.name))
        item = self._open
        if not call.arguments:
            return
        if isinstance(item, CustomCallItem):
            item.input += call.arguments
            self._emit(InputDelta(item_id=item.id, output_index=self._index,
                                  delta=call.arguments))
        else:
            assert isinstance(item, FunctionCallItem)
            item.arguments += call.arguments
            self._emit(ArgumentsDelta(item_id=item.id, output_index=self._index,
                                      delta=call.arguments))

    @property
    def _index(self) -> int:
        """output_index of the open item."""
        return len(self.items) - 1

    def _begin(self, item: OutputItem) -> None:
        self._close("completed")
        self.items.append(item)
        self._open = item
        self._emit(ItemAdded(output_index=self._index, item=item))

    def _begin_part(self, item: OutputMessage | ReasoningItem,
                    part: OutputText | ReasoningText) -> None:
        item.content.append(part)  # type: ignore[arg-type]  # of the item's own kind
        self._emit(PartAdded(item_id=item.id, output_index=self._index, part=part))

    def _close(self, status: ItemStatus) -> None:
        item, index = self._open, self._index
        if item is None:
            return
        if isinstance(item, (OutputMessage, ReasoningItem)):
            part = item.content[0]
            if isinstance(part, OutputText):
                self._emit(TextDone(item_id=item.id, output_index=index, text=part.text,
                                    logprobs=part.logprobs))
            else:
                self._emit(ReasoningDone(item_id=item.id, output_index=index, text=part.text))
            self._emit(PartDone(item_id=item.id, output_index=index, part=part))
        elif isinstance(item, FunctionCallItem):
            self._emit(ArgumentsDone(item_id=item.id, output_index=index, name=item.name,
                                     arguments=item.arguments))
        else:
            self._emit(InputDone(item_id=item.id, output_index=index, input=item.input))
        item.status = status
        self._emit(ItemDone(output_index=index, item=item))
        self._open = None


def _new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"
