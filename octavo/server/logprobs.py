"""Engine logprobs -> the shapes of the two APIs. Knows the tokenizer for bytes and offsets."""

import codecs
from collections.abc import Sequence

from octavo.engine.outputs import Logprob, TokenLogprobDict
from octavo.server.protocol.responses import (
    ChatLogprob,
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprob,
    PromptLogprobs,
    TopLogprob,
)
from octavo.tokenizer.tokenizer import Tokenizer

# JSON has no infinity; clients know this value from other servers
_FLOOR = -9999.0


class CompletionLogprobWriter:
    """Logprobs of one choice of /v1/completions, in pieces or at once: it keeps the text offset."""

    def __init__(self, tokenizer: Tokenizer, num_top: int, listed: Sequence[int] | None = None, *,
                 skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._num_top = num_top
        self._listed = listed
        self._skip_special = skip_special_tokens
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, token_ids: Sequence[int], entries: Sequence[TokenLogprobDict | None],
              into: CompletionLogprobs | None = None) -> CompletionLogprobs:
        """Adds the entries of some tokens. None stands for a token without a probability."""
        result = CompletionLogprobs() if into is None else into
        for token_id, entry in zip(token_ids, entries):
            result.text_offset.append(self._offset)
            result.tokens.append(token_text(self._tokenizer, token_id))
            if entry is None:
                result.token_logprobs.append(None)
                result.top_logprobs.append(None)
            else:
                result.token_logprobs.append(finite(entry[token_id].logprob))
                result.top_logprobs.append(self._top(token_id, entry))
            self._advance(token_id)
        return result

    def skip(self, text: str) -> None:
        """This text comes before, without logprobs (an echoed prompt)."""
        self._offset += len(text)

    def _top(self, token_id: int, entry: TokenLogprobDict) -> dict[str, float]:
        """The most likely (or the listed) ones, and the token itself: one more where it is not
        among them."""
        top: dict[str, float] = {}
        for candidate, logprob in [*_candidates(entry, self._num_top, self._listed),
                                   (token_id, entry[token_id])]:
            # two tokens of one text: the more likely one stays
            top.setdefault(token_text(self._tokenizer, candidate), finite(logprob.logprob))
        return top

    def _advance(self, token_id: int) -> None:
        if self._skip_special and token_id in self._tokenizer.special_ids:
            return
        self._offset += len(self._decoder.decode(self._tokenizer.id_to_bytes(token_id)))


def chat_logprobs(tokenizer: Tokenizer, token_ids: Sequence[int],
                  entries: Sequence[TokenLogprobDict], num_top: int,
                  listed: Sequence[int] | None = None) -> ChatLogprobs:
    """The drawn tokens with exactly num_top candidates each, or with the listed ids."""
    content = []
    for token_id, entry in zip(token_ids, entries):
        content.append(ChatLogprob(
            token=tokenizer.id_to_token_text(token_id), bytes=_bytes(tokenizer, token_id),
            logprob=finite(entry[token_id].logprob),
            top_logprobs=[
                TopLogprob(token=tokenizer.id_to_token_text(candidate),
                           bytes=_bytes(tokenizer, candidate), logprob=finite(value.logprob))
                for candidate, value in _candidates(entry, num_top, listed)
            ],
        ))
    return ChatLogprobs(content=content)


def prompt_logprobs(entries: Sequence[TokenLogprobDict | None]) -> PromptLogprobs:
    """vLLM's shape: for each prompt token, candidates by token id."""
    return [
        None if entry is None else {
            str(token_id): PromptLogprob(logprob=finite(value.logprob), rank=value.rank,
                                         decoded_token=value.decoded_token)
            for token_id, value in entry.items()
        }
        for entry in entries
    ]


def most_likely(entry: TokenLogprobDict, count: int) -> list[tuple[int, Logprob]]:
    """The `count` most likely candidates, most likely first."""
    ranked = sorted(entry.items(), key=lambda item: (-item[1].logprob, item[0]))
    return ranked[:count]


def _candidates(entry: TokenLogprobDict, count: int,
                listed: Sequence[int] | None) -> list[tuple[int, Logprob]]:
    """The most likely ones, or those the request lists, in its order. Those of a prompt position
    are never the listed ones."""
    if listed is None or not all(i in entry for i in listed):
        return most_likely(entry, count)
    return [(i, entry[i]) for i in dict.fromkeys(listed)]


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token's text; the API's spelling of its bytes where they are not text on their own."""
    text = tokenizer.whole_text(token_id)
    if text is not None:
        return text
    return "bytes:" + "".join(f"\\x{byte:02x}" for byte in tokenizer.id_to_bytes(token_id))


def finite(logprob: float) -> float:
    """A value that JSON can hold."""
    return logprob if logprob > _FLOOR else _FLOOR


def _bytes(tokenizer: Tokenizer, token_id: int) -> list[int]:
    return list(tokenizer.id_to_bytes(token_id))
