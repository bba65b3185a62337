"""Runs a loaded model by hand: fills StepArrays for given sequences, without scheduler or worker.

For tests and measurements only.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from octavo.backends.seam import LoadedModel
from octavo.graph.step_arrays import F32, StepArrays, StepLimits, StepOutputs


@dataclasses.dataclass(slots=True, kw_only=True)
class Chunk:
    """Rows of one sequence in one step.

    token_ids: of these rows, the first at position `start`. block_ids: of the whole sequence, one
    list a KV group. rows: which rows need logits (indices into token_ids), all by default.
    """

    token_ids: Sequence[int]
    start: int
    block_ids: Sequence[Sequence[int]]
    rows: Sequence[int] | None = None


def fill_step(arrays: StepArrays, chunks: Sequence[Chunk], *, block_size: int) -> None:
    """Fills the arrays for one step, sampling left at greedy."""
    t = r = 0
    for index, chunk in enumerate(chunks):
        count = len(chunk.token_ids)
        positions = np.arange(chunk.start, chunk.start + count)
        arrays.token_ids[t : t + count] = chunk.token_ids
        arrays.positions[t : t + count] = positions
        arrays.query_start_loc[index : index + 2] = t, t + count
        arrays.context_len[index] = chunk.start + count
        for group, ids in enumerate(chunk.block_ids):
            arrays.block_tables[group, index, : len(ids)] = ids
            blocks = np.asarray(ids, np.int32)[positions // block_size]
            arrays.slot_mapping[group, t : t + count] = blocks * block_size + positions % block_size
        rows = range(count) if chunk.rows is None else chunk.rows
        arrays.logits_indices[r : r + len(rows)] = [t + row for row in rows]
        t, r = t + count, r + len(rows)
    arrays.num_tokens, arrays.num_seqs, arrays.num_rows = t, len(chunks), r


def run_step(
    model: LoadedModel, arrays: StepArrays, chunks: Sequence[Chunk], *, block_size: int
) -> StepOutputs:
    """One step with raw logits."""
    fill_step(arrays, chunks, block_size=block_size)
    return model.step(arrays, want_logits=True)


def logits_of(
    model: LoadedModel,
    token_ids: Sequence[int],
    *,
    limits: StepLimits,
    block_size: int,
    chunk_size: int | None = None,
    first_block: int = 0,
) -> F32:
    """Logits [n, vocab] of every position of one sequence, alone, in chunks.

    Every KV group gets the blocks from first_block on.
    """
    arrays = StepArrays(limits)
    count = -(-len(token_ids) // block_size)
    ids = [list(range(first_block, first_block + count))] * limits.num_kv_groups
    size = chunk_size or len(token_ids)
    found = []
    for start in range(0, len(token_ids), size):
        chunk = Chunk(token_ids=token_ids[start : start + size], start=start, block_ids=ids)
        logits = run_step(model, arrays, [chunk], block_size=block_size).logits
        assert logits is not None
        found.append(np.array(logits))
    return np.concatenate(found)
