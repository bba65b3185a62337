"""How well a model predicts a text: mean negative log-likelihood of the next token.

The protocol, fixed so that figures compare: the text is tokenized without BOS and cut into windows
of 2,048 tokens, a shorter rest dropped. Each window is computed on its own from position 0; the
tokens of its second half are scored, each under the logits of the row before it. The result is the
mean over all scored tokens, in nats.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from octavo.backends.seam import LoadedModel
from octavo.graph.step_arrays import StepArrays, StepLimits
from octavo.testing.forward import Chunk, fill_step

WINDOW = 2048
CHUNK = 512  # rows of a step; results do not depend on it


@dataclasses.dataclass(slots=True, frozen=True)
class Likelihood:
    """Mean negative log-likelihood in nats over `num_scored` tokens of `num_windows` windows."""

    mean_nll: float
    num_scored: int
    num_windows: int


def likelihood_limits(vocab_size: int, block_size: int) -> StepLimits:
    """Step capacity that `likelihood` needs."""
    return StepLimits(
        max_tokens=CHUNK, max_seqs=1, max_rows=CHUNK, max_blocks_per_seq=WINDOW // block_size,
        vocab_size=vocab_size,
    )  # fmt: skip


def likelihood(
    model: LoadedModel,
    token_ids: Sequence[int],
    *,
    limits: StepLimits,
    block_size: int,
    max_windows: int | None = None,
) -> Likelihood:
    """Scores whole windows of `token_ids`, on KV blocks 0 to WINDOW / block_size - 1."""
    starts = range(0, len(token_ids) - WINDOW + 1, WINDOW)[:max_windows]
    assert len(starts) > 0, f"{len(token_ids)} tokens are less than a window of {WINDOW}"
    arrays = StepArrays(limits)
    scores = [
        score
        for start in starts
        for score in _score_window(
            model, arrays, token_ids[start : start + WINDOW], block_size=block_size
        )
    ]
    return Likelihood(-float(np.mean(scores)), len(scores), len(starts))


def _score_window(
    model: LoadedModel, arrays: StepArrays, window: Sequence[int], *, block_size: int
) -> list[float]:
    """Logprobs of the tokens at WINDOW / 2 .. WINDOW - 1."""
    blocks = [list(range(WINDOW // block_size))]
    found: list[float] = []
    for start in range(0, WINDOW, CHUNK):
        stop = start + CHUNK
        # Row p predicts token p + 1.
        rows = range(max(start, WINDOW // 2 - 1), min(stop, WINDOW - 1))
        chunk = Chunk(
            token_ids=window[start:stop], start=start, block_ids=blocks,
            rows=[row - start for row in rows],
        )  # fmt: skip
        fill_step(arrays, [chunk], block_size=block_size)
        count = len(rows)
        arrays.sampling.target_ids[:count] = [window[row + 1] for row in rows]
        arrays.sampling.num_logprobs[:count] = 0
        found.extend(model.step(arrays).logprob[:count].tolist())
    return found
