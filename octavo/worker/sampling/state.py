"""SamplingState: how one request's logits are edited before its next token is drawn.

Only requests that ask for penalties, biases, bans or an allowed set have one. Everything is kept
incrementally, so a step costs what changed. Depends on the request alone, never on the batch.
"""

import numpy as np
import numpy.typing as npt

from octavo.core.sampling_params import SamplingParams
from octavo.core.step import NewRequestData

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]

_BAN = np.float32(-np.inf)
_EMPTY_IDS = np.zeros(0, np.int32)


class TokenCounts:
    """Distinct tokens seen, with how often each is in the output (0: in the prompt only)."""

    def __init__(self, prompt: list[int]) -> None:
        distinct = np.unique(np.asarray(prompt, np.int32)) if prompt else _EMPTY_IDS
        self._slot = {int(t): i for i, t in enumerate(distinct)}
        self._n = len(distinct)
        self._ids: I32 = np.zeros(max(64, 2 * self._n), np.int32)
        self._ids[: self._n] = distinct
        self._counts: I32 = np.zeros(len(self._ids), np.int32)

    def add(self, token_id: int) -> None:
        """One more of this token in the output."""
        slot = self._slot.get(token_id)
        if slot is None:
            slot = self._slot[token_id] = self._n
            if slot == len(self._ids):
                self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
            self._ids[slot] = token_id
            self._n += 1
        self._counts[slot] += 1

    @property
    def ids(self) -> I32:
        """[distinct tokens], each once."""
        return self._ids[: self._n]

    @property
    def counts(self) -> I32:
        """[distinct tokens], times in the output."""
        return self._counts[: self._n]


class SamplingState:
    """Edits of one request's logits, following its output."""

    def __init__(self, params: SamplingParams, *, prompt: list[int], output: list[int],
                 stop_ids: list[int], bad_words: tuple[tuple[int, ...], ...],
                 vocab_size: int) -> None:
        self._min_tokens = params.min_tokens
        self._num_output = 0
        self._stop_ids = stop_ids
        self.counts: TokenCounts | None = None
        if _has_penalty(params):
            # the prompt matters to the repetition penalty only
            self.counts = TokenCounts(prompt if params.repetition_penalty != 1.0 else [])
        bias = params.logit_bias or {}
        self._bias_ids: I32 = np.fromiter(bias.keys(), np.int32, len(bias))
        self._bias_values: F32 = np.fromiter(bias.values(), np.float32, len(bias))
        # a word of one token is always banned; a longer one when the output ends in its rest
        self._banned_always = sorted({w[0] for w in bad_words if len(w) == 1})
        self._bad_words = [w for w in bad_words if len(w) > 1]
        self._tail: list[int] = []
        self._tail_len = max((len(w) - 1 for w in self._bad_words), default=0)
        self.mask: U32 | None = None
        if params.allowed_token_ids is not None:
            self.mask = allowed_mask(params.allowed_token_ids, vocab_size)
        self._cached: tuple[I32, F32] | None = None
        for token_id in output:
            self.append(token_id)

    @classmethod
    def of(cls, new: NewRequestData, *, vocab_size: int) -> "SamplingState | None":
        """The state of a request entering the worker, or None if its logits stay as they are."""
        p = new.params
        if not (_has_penalty(p) or p.logit_bias or p.min_tokens or new.bad_words_token_ids
                or p.allowed_token_ids is not None):
            return None
        n = new.num_prompt_tokens
        stops = sorted({*new.eos_token_ids, *(p.stop_token_ids or ())})
        return cls(p, prompt=new.token_ids[:n], output=new.token_ids[n:], stop_ids=stops,
                   bad_words=new.bad_words_token_ids, vocab_size=vocab_size)

    def append(self, token_id: int) -> None:
        """The output has this token next."""
        self._num_output += 1
        if self.counts is not None:
            self.counts.add(token_id)
        if self._tail_len:
            self._tail.append(token_id)
            del self._tail[: -self._tail_len]
            self._cached = None
        if self._num_output == self._min_tokens:
            self._cached = None

    def bias(self) -> tuple[I32, F32]:
        """(ids, values) added to the logits of the next token; each id once, -inf bans."""
        if self._cached is None:
            self._cached = self._make_bias()
        return self._cached

    def _make_bias(self) -> tuple[I32, F32]:
        banned = list(self._banned_always)
        if self._num_output < self._min_tokens:
            banned += self._stop_ids
        for word in self._bad_words:
            rest = len(word) - 1
            if tuple(self._tail[-rest:]) == word[:-1]:
                banned.append(word[-1])
        if not banned:
            return self._bias_ids, self._bias_values
        ban_ids = np.unique(np.asarray(banned, np.int32))
        keep = ~np.isin(self._bias_ids, ban_ids)
        return (
            np.concatenate((self._bias_ids[keep], ban_ids)),
            np.concatenate((self._bias_values[keep], np.full(len(ban_ids), _BAN, np.float32))),
        )


def _has_penalty(p: SamplingParams) -> bool:
    return (p.repetition_penalty != 1.0 or p.presence_penalty != 0.0
            or p.frequency_penalty != 0.0)


def allowed_mask(token_ids: list[int], vocab_size: int) -> U32:
    """uint32 [ceil(vocab_size / 32)]: bit i % 32 of word i // 32 is set for an allowed id i."""
    words = np.zeros((vocab_size + 31) // 32, np.uint32)
    ids = np.asarray(token_ids, np.int64)
    bits = np.uint32(1) << (ids % 32).astype(np.uint32)
    np.bitwise_or.at(words, ids // 32, bits)
    return words
