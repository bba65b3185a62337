"""The grammar seam: what the engine needs of a library that constrains outputs.

Token ids and bitsets only: no request, no scheduler, no text. At most six methods a class.
"""

import enum
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.core.structured_outputs import StructuredOutputs

MaskRow = npt.NDArray[np.uint32]


class MatcherState(enum.Enum):
    """What may follow the tokens accepted so far."""

    OPEN = "open"  # something must follow
    ACCEPTING = "accepting"  # something may follow, and so may the end (EOS)
    COMPLETE = "complete"  # only the end may follow


class GrammarMatcher(Protocol):
    """Where one output stands in its grammar. Errors (InvalidRequestError) are final."""

    def accept(self, token_ids: Sequence[int]) -> None:
        """Takes output tokens, in order; EOS is taken in no state but ACCEPTING or COMPLETE.

        Raises InvalidRequestError: a token does not fit, or the grammar is too complex here.
        """

    def rollback(self, num_tokens: int) -> None:
        """Takes back the last tokens accepted."""

    def fill_mask(self, row: MaskRow) -> None:
        """Sets bit i % 32 of row[i // 32] for each token id i that may follow, clears the others.

        The bits of EOS ids are set exactly when the output may end here. Raises
        InvalidRequestError when the grammar is too complex to tell.
        """

    def state(self) -> MatcherState:
        """See MatcherState."""

    def forced_tokens(self) -> list[int]:
        """Tokens that must follow, spelled as the tokenizer would whatever comes behind them; empty
        where there is choice, or where the forced text may end within a token. Where it is not
        empty, fill_mask() allows its first token alone."""

    def copy(self) -> "GrammarMatcher":
        """An independent matcher in the same state."""


class GrammarBackend(Protocol):
    """Compiles grammars for one tokenizer. Safe to call from several threads.

    eos_token_ids: the ids that end an output. vocab_size: a mask row has ceil(vocab_size / 32)
    words.
    """

    eos_token_ids: tuple[int, ...]
    vocab_size: int

    def compile(self, spec: StructuredOutputs) -> GrammarMatcher:
        """A matcher at the start. Raises InvalidRequestError naming what is refused."""
