"""Fills SamplingArrays for the rows of one step. Vectorized but for rows that edit logits.

A row either draws (the last known token of a request) or scores (a position whose next token is
known: of the prompt, or of text that a grammar forced). It knows RequestStates and the arrays, not
backends.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.graph.step_arrays import SamplingArrays
from octavo.worker.request_states import RequestStates

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]


def fill_draw_rows(arrays: SamplingArrays, states: RequestStates, *, draw_rows: I64,
                   state_rows: I64, num_rows: int) -> None:
    """Sets R rows `draw_rows` of the step from request rows `state_rows` (same length).

    Rows not in `draw_rows` become neutral score rows; fill_score_rows() gives them their targets.
    """
    full = len(draw_rows) == num_rows
    at: slice | I64 = slice(0, num_rows) if full else draw_rows
    if not full:
        _neutralize(arrays, num_rows)
    for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty",
                 "presence_penalty", "frequency_penalty", "seed", "sample_index",
                 "num_logprobs"):
        getattr(arrays, name)[at] = getattr(states, name)[state_rows]
    # noise is keyed by the index of the token to be drawn in prompt + output
    arrays.position[at] = states.num_tokens[state_rows]
    arrays.target_ids[at] = -1
    arrays.mask_index[at] = -1
    arrays.report_start[: num_rows + 1] = 0
    if states.edits:
        _fill_edits(arrays, states, draw_rows=draw_rows, state_rows=state_rows,
                    num_rows=num_rows)
    else:
        arrays.penalty_start[: num_rows + 1] = 0
        arrays.bias_start[: num_rows + 1] = 0
    if states.edits or states.grammar_masks:
        _fill_masks(arrays, states, draw_rows=draw_rows, state_rows=state_rows)


def fill_score_rows(arrays: SamplingArrays, *, rows: I64, target_ids: npt.NDArray[np.int32],
                    num_logprobs: npt.NDArray[np.int32]) -> None:
    """Makes `rows` report the logprob of `target_ids` and of `num_logprobs` alternatives."""
    arrays.target_ids[rows] = target_ids
    arrays.num_logprobs[rows] = num_logprobs


def fill_report_ids(arrays: SamplingArrays, states: RequestStates,
                    rows_of: Sequence[tuple[int, Sequence[int]]], *, num_rows: int) -> None:
    """Lists, behind the other filling, the ids to report: rows_of has (state row, its R rows)."""
    lengths = np.zeros(num_rows, np.int32)
    ids_of: dict[int, I32] = {}
    for state_row, rows in rows_of:
        ids = states.report_ids.get(state_row)
        if ids is not None:
            for row in rows:
                ids_of[row] = ids
                lengths[row] = len(ids)
    np.cumsum(lengths, out=arrays.report_start[1 : num_rows + 1])
    for row, ids in ids_of.items():
        start = int(arrays.report_start[row])
        arrays.report_ids[start : start + len(ids)] = ids


def _neutralize(arrays: SamplingArrays, num_rows: int) -> None:
    arrays.temperature[:num_rows] = 0.0
    arrays.top_k[:num_rows] = 0
    arrays.top_p[:num_rows] = 1.0
    arrays.min_p[:num_rows] = 0.0
    arrays.repetition_penalty[:num_rows] = 1.0
    arrays.presence_penalty[:num_rows] = 0.0
    arrays.frequency_penalty[:num_rows] = 0.0
    arrays.seed[:num_rows] = 0
    arrays.sample_index[:num_rows] = 0
    arrays.position[:num_rows] = 0
    arrays.target_ids[:num_rows] = -1
    arrays.num_logprobs[:num_rows] = -1
    arrays.mask_index[:num_rows] = -1


def _fill_edits(arrays: SamplingArrays, states: RequestStates, *, draw_rows: I64,
                state_rows: I64, num_rows: int) -> None:
    penalty_len = np.zeros(num_rows, np.int32)
    bias_len = np.zeros(num_rows, np.int32)
    penalty_end = bias_end = 0
    for row, state_row in zip(draw_rows.tolist(), state_rows.tolist()):
        state = states.edits.get(state_row)
        if state is None:
            continue
        if state.counts is not None:
            ids = state.counts.ids
            end = penalty_end + len(ids)
            arrays.penalty_ids[penalty_end:end] = ids
            arrays.penalty_counts[penalty_end:end] = state.counts.counts
            penalty_len[row] = len(ids)
            penalty_end = end
        ids, values = state.bias()
        if len(ids):
            end = bias_end + len(ids)
            arrays.bias_ids[bias_end:end] = ids
            arrays.bias_values[bias_end:end] = values
            bias_len[row] = len(ids)
            bias_end = end
    arrays.penalty_start[0] = arrays.bias_start[0] = 0
    np.cumsum(penalty_len, out=arrays.penalty_start[1 : num_rows + 1])
    np.cumsum(bias_len, out=arrays.bias_start[1 : num_rows + 1])


def _fill_masks(arrays: SamplingArrays, states: RequestStates, *, draw_rows: I64,
                state_rows: I64) -> None:
    """Allowed ids, those the grammar allows, or what both allow."""
    num_masks = 0
    for row, state_row in zip(draw_rows.tolist(), state_rows.tolist()):
        state = states.edits.get(state_row)
        allowed = None if state is None else state.mask
        grammar = states.grammar_masks.get(state_row)
        if grammar is not None:
            arrays.masks[num_masks] = grammar if allowed is None else grammar & allowed
        elif allowed is not None:
            arrays.masks[num_masks] = allowed
        else:
            continue
        arrays.mask_index[row] = num_masks
        num_masks += 1
