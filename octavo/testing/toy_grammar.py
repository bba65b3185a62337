"""A grammar backend that knows choices only: a double of the seam, and its meaning in few lines.

Every way to cut a choice into tokens is allowed, as by the real backend.
"""

from collections.abc import Sequence

import numpy as np

from octavo.core.structured_outputs import StructuredOutputs
from octavo.grammar.backend import MaskRow, MatcherState


class ToyGrammarBackend:
    """tokens: the bytes of each id; empty for ids that are no text (EOS too)."""

    def __init__(self, tokens: Sequence[bytes], *, eos_token_ids: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        self.eos_token_ids = tuple(eos_token_ids)
        self.vocab_size = len(self.tokens)
        self.num_compiled = 0

    def compile(self, spec: StructuredOutputs) -> "ToyMatcher":
        """See the seam."""
        self.num_compiled += 1
        if spec.choice is None:
            raise spec.error(f"{spec.kind} is beyond the toy backend")
        return ToyMatcher(self, spec, frozenset(c.encode() for c in spec.choice))


class ToyMatcher:
    """See the seam."""

    def __init__(self, backend: ToyGrammarBackend, spec: StructuredOutputs,
                 choices: frozenset[bytes], taken: tuple[int, ...] = ()) -> None:
        self._backend = backend
        self._spec = spec
        self._choices = choices
        self._taken = taken

    @property
    def _text(self) -> bytes:
        return b"".join(self._backend.tokens[i] for i in self._taken)

    def _rests(self) -> list[bytes]:
        """What may follow, as texts; the empty one is the end."""
        text = self._text
        if any(i in self._backend.eos_token_ids for i in self._taken):
            return []
        return [c[len(text):] for c in sorted(self._choices) if c.startswith(text)]

    def accept(self, token_ids: Sequence[int]) -> None:
        """See the seam."""
        for token_id in token_ids:
            if not self._allows(token_id):
                raise self._spec.error(f"token {token_id} does not fit")
            self._taken = (*self._taken, token_id)

    def _allows(self, token_id: int) -> bool:
        if token_id in self._backend.eos_token_ids:
            return b"" in self._rests()
        token = self._backend.tokens[token_id]
        return bool(token) and any(rest.startswith(token) for rest in self._rests())

    def rollback(self, num_tokens: int) -> None:
        """See the seam."""
        self._taken = self._taken[: len(self._taken) - num_tokens]

    def fill_mask(self, row: MaskRow) -> None:
        """See the seam."""
        row[:] = 0
        for token_id in range(self._backend.vocab_size):
            if self._allows(token_id):
                row[token_id // 32] |= np.uint32(1 << (token_id % 32))

    def state(self) -> MatcherState:
        """See the seam."""
        rests = self._rests()
        if any(rests):
            return MatcherState.ACCEPTING if b"" in rests else MatcherState.OPEN
        return MatcherState.COMPLETE

    def forced_tokens(self) -> list[int]:
        """See the seam; one token for each byte that all texts left have next."""
        forced: list[int] = []
        for column in zip(*self._rests()):  # as long as the shortest text
            if len(set(column)) > 1:
                break
            forced.append(self._backend.tokens.index(bytes(column[:1])))
        return forced

    def copy(self) -> "ToyMatcher":
        """See the seam."""
        return ToyMatcher(self._backend, self._spec, self._choices, self._taken)
