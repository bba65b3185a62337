"""How well a model predicts a text: mean negative log-likelihood of the next token, perplexity.

The protocol, fixed so that figures compare: the text is tokenized without BOS and cut into windows
of 2,048 tokens (unless told otherwise), a shorter rest dropped. Each window is computed on its own
from position 0; the tokens of its second half are scored, each under the logits of the row before
it. The result is the mean over all scored tokens, in nats.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from octavo.backends.seam import Backend, KVOptions, LoadedModel, WeightSource
from octavo.errors import ConfigError
from octavo.graph.step_arrays import StepArrays, StepLimits
from octavo.models.registry import record
from octavo.tokenizer.loading import load_tokenizer
from octavo.weights.load_quantize import QuantizedWeights
from octavo.weights.model_file import open_model

WINDOW = 2048
CHUNK = 512  # rows of a step; results do not depend on it
BLOCK_SIZE = 16


@dataclasses.dataclass(slots=True, frozen=True)
class Likelihood:
    """Mean negative log-likelihood in nats over `num_scored` tokens of `num_windows` windows.

    `standard_error`: of the mean, taking tokens for independent.
    """

    mean_nll: float
    standard_error: float
    num_scored: int
    num_windows: int

    @property
    def perplexity(self) -> float:
        """exp of the mean."""
        return math.exp(self.mean_nll)


def measure(
    backend: Backend,
    model_path: Path,
    text: str,
    *,
    kv_dtype: str,
    quantization: str | None = None,
    window: int = WINDOW,
    max_windows: int | None = None,
    num_threads: int = 1,
    on_window: Callable[[int, int], None] | None = None,
) -> Likelihood:
    """The likelihood of `text` under the model at `model_path`.

    on_window: called with (windows done, windows in all). Raises ConfigError when the text is
    shorter than one window, or the window longer than what the model knows positions for.
    """
    with open_model(model_path) as file:
        longest = file.config.max_position_embeddings
        if not 2 <= window <= longest:
            raise ConfigError(
                f"window is {window}: give 2 to {longest}, the positions the model knows",
                param="window",
            )
        token_ids = load_tokenizer(file).encode(text, add_special_tokens=False)
        if len(token_ids) < window:
            raise ConfigError(
                f"window is {window}, and the text has {len(token_ids)} tokens: give a longer "
                "text or a smaller window",
                param="window",
            )
        graph = record(file.config, file.tensors.keys())
        limits = _limits(graph.vocab_size, graph.num_kv_groups, window)
        kv = KVOptions(
            block_size=BLOCK_SIZE, num_blocks=limits.max_blocks_per_seq, dtype=kv_dtype
        )
        weights: WeightSource = file
        if quantization is not None:
            weights = QuantizedWeights(file, quantization)
        model = backend.load(graph, weights, kv=kv, limits=limits, num_threads=num_threads)
    try:
        arrays = StepArrays(limits)
        starts = range(0, len(token_ids) - window + 1, window)[:max_windows]
        scores: list[float] = []
        for done, start in enumerate(starts, 1):
            scores += _score_window(model, arrays, token_ids[start : start + window])
            if on_window is not None:
                on_window(done, len(starts))
    finally:
        model.close()
    spread = float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0
    return Likelihood(
        -float(np.mean(scores)), spread / math.sqrt(len(scores)), len(scores), len(starts)
    )


def _limits(vocab_size: int, num_kv_groups: int, window: int) -> StepLimits:
    return StepLimits(
        max_tokens=CHUNK, max_seqs=1, max_rows=CHUNK, num_kv_groups=num_kv_groups,
        max_blocks_per_seq=-(-window // BLOCK_SIZE), vocab_size=vocab_size,
    )  # fmt: skip


def _score_window(model: LoadedModel, arrays: StepArrays, window: Sequence[int]) -> list[float]:
    """Logprobs of the tokens of the second half."""
    size = len(window)
    found: list[float] = []
    for start in range(0, size, CHUNK):
        stop = min(start + CHUNK, size)
        # Row p predicts token p + 1.
        rows = range(max(start, size // 2 - 1), min(stop, size - 1))
        _fill(arrays, window[start:stop], start, [row - start for row in rows])
        count = len(rows)
        arrays.sampling.target_ids[:count] = [window[row + 1] for row in rows]
        arrays.sampling.num_logprobs[:count] = 0
        found.extend(model.step(arrays).logprob[:count].tolist())
    return found


def _fill(arrays: StepArrays, token_ids: Sequence[int], start: int, rows: Sequence[int]) -> None:
    """A step of one sequence that lies in the blocks from 0 on; sampling stays greedy."""
    count = len(token_ids)
    positions = np.arange(start, start + count)
    arrays.token_ids[:count] = token_ids
    arrays.positions[:count] = positions
    arrays.query_start_loc[:2] = 0, count
    arrays.context_len[0] = start + count
    arrays.block_tables[:, 0, :] = np.arange(arrays.block_tables.shape[2])
    arrays.slot_mapping[:, :count] = positions
    arrays.logits_indices[: len(rows)] = rows
    arrays.num_tokens, arrays.num_seqs, arrays.num_rows = count, 1, len(rows)
