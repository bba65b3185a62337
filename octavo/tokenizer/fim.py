"""Fill-in-the-middle: the tokens that ask a code model for the text between two others.

Token ids only: no files, no requests.
"""

import dataclasses
from collections.abc import Callable, Sequence

# (before, after, middle): StarCoder and Granite, Qwen2.5-Coder and CodeGemma, Code Llama (its
# vocabulary, and as a converter may write it), DeepSeek-Coder.
_FAMILIES = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
# What such a model writes where its middle ends, beside its end-of-sequence tokens: the end of a
# text, or the beginning of the next file.
_ENDS = ("<|endoftext|>", "<fim_pad>", "<|fim_pad|>", "<file_sep>", "<|file_sep|>",
         "<|file_separator|>", "▁<EOT>", "<EOT>")


@dataclasses.dataclass(slots=True, frozen=True)
class FimTokens:
    """before, after, middle: ids in front of the text before the gap, of the text after it, and of
    what fills it. end_ids: ids that end the filling."""

    before: int
    after: int
    middle: int
    end_ids: tuple[int, ...] = ()

    def prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """The prompt that a model continues with the middle: text before the gap first, as the
        models are trained (PSM, arXiv 2207.14255)."""
        return [self.before, *before, self.after, *after, self.middle]


def find_fim_tokens(token_to_id: Callable[[str], int | None],
                    named: Sequence[int | None] = ()) -> FimTokens | None:
    """The tokens of a vocabulary; None if it has none.

    named: (before, after, middle) as the model's file names them, which go before the known names.
    """
    found = tuple(i for i in named if i is not None)
    for family in _FAMILIES:
        if len(found) == 3:
            break
        found = tuple(i for i in map(token_to_id, family) if i is not None)
    if len(found) != 3:
        return None
    ends = tuple(i for i in map(token_to_id, _ENDS) if i is not None)
    return FimTokens(*found, end_ids=ends)
