"""Engine outputs of one response -> output items, with the logprobs of their texts.

Items come out the same however the output is cut into pieces: a stream ends with the items of the
whole answer.
"""

import dataclasses
import re
from collections.abc import Sequence

from octavo.engine.outputs import CompletionOutput, TokenLogprobDict
from octavo.server.logprobs import chat_logprobs
from octavo.server.openai_responses.output import OutputItems
from octavo.server.protocol.responses import ChatLogprob
from octavo.tokenizer.detokenizer import IncrementalDetokenizer
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.tools.parser import OutputDelta, OutputParser
from octavo.tools.plan import AnswerPlan

# behind every character that can be a call's last one, in any family
_CALL_ENDS = re.compile(r"(?<=[>}\]])")


class OutputReader:
    """Takes the output of one request, whole or in pieces, and fills `items`.

    num_top: candidates with each logprob. skip_special_tokens: as the engine decodes.
    """

    def __init__(self, plan: AnswerPlan, prompt: str, items: OutputItems, *,
                 tokenizer: Tokenizer, num_top: int, skip_special_tokens: bool) -> None:
        self._plan = plan
        self._prompt = prompt
        self._items = items
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._parser = None if plan.is_plain else plan.parser(prompt)
        self._sorter = None if plan.is_plain else _TokenSorter(
            plan.parser(prompt),
            IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens))
        self._token_ids: list[int] = []  # up to the end of reasoning
        self._logprobs: list[ChatLogprob] = []  # of content that has not come yet

    @property
    def num_reasoning_tokens(self) -> int:
        """Of all taken so far."""
        return self._plan.num_reasoning_tokens(self._tokenizer, self._prompt, self._token_ids)

    def take(self, part: CompletionOutput) -> None:
        """The next piece, or all of it. The last one has a finish_reason."""
        is_last, parser = part.finish_reason is not None, self._parser
        self._logprobs += self._content_logprobs(part)
        if parser is None:
            self._add(OutputDelta(content=part.text))
        else:
            if not parser.reasoning_is_over:
                self._token_ids += part.token_ids
            found = [parser.feed(piece) for piece in _CALL_ENDS.split(part.text)]
            if is_last:
                found.append(parser.finish())
            for news in _in_order(found):
                self._add(news)
        if is_last:
            if self._logprobs and (self._items.in_message or parser is None):
                self._items.add(OutputDelta(), self._logprobs)
            self._items.finish(is_cut=part.finish_reason == "length")

    def _add(self, news: OutputDelta) -> None:
        """The text of a token may come later than the token: its logprob waits for text."""
        logprobs: list[ChatLogprob] = []
        if news.content:
            logprobs, self._logprobs = self._logprobs, logprobs
        self._items.add(news, logprobs)

    def _content_logprobs(self, part: CompletionOutput) -> list[ChatLogprob]:
        """Of the tokens of this piece that are content."""
        if part.logprobs is None:
            return []
        ids: Sequence[int] = part.token_ids
        entries: Sequence[TokenLogprobDict] = part.logprobs
        if self._sorter is not None:
            kept = self._sorter.content(ids, entries, is_last=part.finish_reason is not None)
            ids, entries = [k[0] for k in kept], [k[1] for k in kept]
        return chat_logprobs(self._tokenizer, ids, entries, self._num_top).content


def _in_order(found: list[OutputDelta]) -> list[OutputDelta]:
    """As few deltas as hold the same in the same order: within one, reasoning comes before content
    and content before calls. No piece goes on behind the end of a call, so text and calls come out
    in the order in which they were written, however the output was cut."""
    merged = [OutputDelta()]
    for news in found:
        last = merged[-1]
        if (news.content and last.calls) or (news.reasoning and (last.content or last.calls)):
            last = OutputDelta()
            merged.append(last)
        last.reasoning += news.reasoning
        last.content += news.content
        for call in news.calls:
            if call.name is None and last.calls:  # more of the same call
                before = last.calls[-1]
                last.calls[-1] = dataclasses.replace(
                    before, arguments=before.arguments + call.arguments)
            else:
                last.calls.append(call)
    return merged


class _TokenSorter:
    """Tells the tokens of content from those of reasoning, calls and markup."""

    def __init__(self, parser: OutputParser, detokenizer: IncrementalDetokenizer) -> None:
        self._parser = parser
        self._detokenizer = detokenizer
        # tokens whose text the parser holds back
        self._pending: list[tuple[int, TokenLogprobDict]] = []
        self._in_content = False

    def content(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobDict], *,
                is_last: bool) -> list[tuple[int, TokenLogprobDict]]:
        """Those of content that are certain, once each, in order."""
        found: list[tuple[int, TokenLogprobDict]] = []
        for token_id, entry in zip(token_ids, entries):
            was_over = self._parser.reasoning_is_over
            self._pending.append((token_id, entry))
            news = self._parser.feed(self._detokenizer.push([token_id]))
            if news.content:
                found += self._pending
                self._in_content = True
            if news.reasoning or news.calls:
                self._in_content = False
            if news.content or news.reasoning or news.calls or (
                    self._parser.reasoning_is_over and not was_over):
                self._pending.clear()
        if is_last and (self._in_content or self._parser.finish().content):
            found += self._pending
        return found
