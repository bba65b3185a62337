"""InputBatch: gathers the StepArrays of one step from RequestStates, vectorized.

    rows of the step:  |-- request 0 --|- 1 -|--- 2 ---|     T rows, query_start_loc at the bars
    logits rows:        prompt positions to score, then the last row if the request draws

Knows NumPy arrays only: no backend, no scheduler object beyond the counts it is given.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.graph.step_arrays import StepArrays
from octavo.worker.request_states import RequestStates
from octavo.worker.sampling.gather import fill_draw_rows, fill_report_ids, fill_score_rows

I64 = npt.NDArray[np.int64]


@dataclasses.dataclass(slots=True, frozen=True)
class StepRows:
    """Where each request's results are among the R logits rows.

    draw_rows[i] is the row that draws for the request in state row draw_states[i]; draw_list and
    state_list hold the same. score_rows: (state row, its rows in prompt order); forced_rows:
    likewise, rows that score output tokens.
    """

    draw_rows: I64
    draw_states: I64
    score_rows: tuple[tuple[int, I64], ...] = ()
    forced_rows: tuple[tuple[int, I64], ...] = ()
    draw_list: list[int] = dataclasses.field(init=False)
    state_list: list[int] = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "draw_list", self.draw_rows.tolist())
        object.__setattr__(self, "state_list", self.draw_states.tolist())


class _Repeat:
    """A step that the next one may repeat with one more token for each of its requests: every
    request ran one token and drew, and only positions, slots and tokens differ a step later.

    Views, not arrays: see RequestStates.
    """

    def __init__(self, arrays: StepArrays, rows: I64, step_rows: StepRows) -> None:
        self.rows = rows
        self.step_rows = step_rows
        self.row_list: list[int] = rows.tolist()
        self.positions = arrays.positions.data
        self.context_len = arrays.context_len.data
        self.draw_position = arrays.sampling.position.data
        self.token_ids = arrays.token_ids.data
        self.slots = arrays.slot_mapping.data


class InputBatch:
    """Owns the gathering; the arrays are the caller's."""

    def __init__(self, arrays: StepArrays, *, block_size: int) -> None:
        self._arrays = arrays
        self._block_size = block_size
        self._iota: npt.NDArray[np.int32] = np.arange(arrays.limits.max_tokens, dtype=np.int32)
        self._repeat: _Repeat | None = None

    def fill(self, states: RequestStates, rows: I64, num_scheduled: I64) -> StepRows:
        """Fills the arrays for the requests of state `rows`, [S], running `num_scheduled` tokens.

        states.num_computed must be this step's start positions.
        """
        self._repeat = None
        a = self._arrays
        num_seqs, num_tokens = len(rows), int(num_scheduled.sum())
        a.num_seqs, a.num_tokens = num_seqs, num_tokens
        starts = a.query_start_loc[: num_seqs + 1]
        starts[0] = 0
        np.cumsum(num_scheduled, out=starts[1:])
        computed = states.num_computed[rows]
        ends = computed + num_scheduled.astype(np.int32)
        a.context_len[:num_seqs] = ends
        if num_tokens == num_seqs:  # decode only
            token_rows = rows
            positions = computed
        else:
            token_rows = np.repeat(rows, num_scheduled)
            positions = self._iota[:num_tokens] + np.repeat(computed - starts[:-1], num_scheduled)
        a.positions[:num_tokens] = positions
        a.token_ids[:num_tokens] = states.token_ids[token_rows, positions]
        self._fill_blocks(states, rows, token_rows, positions, int(ends.max()))
        step_rows = self._fill_rows(states, rows, starts, computed, ends)
        if states.report_ids:
            drawn = zip(step_rows.draw_states.tolist(), step_rows.draw_rows.tolist())
            fill_report_ids(
                a.sampling, states,
                [*((state, [row]) for state, row in drawn),
                 *((state, at.tolist()) for state, at in step_rows.forced_rows)],
                num_rows=a.num_rows)
        draws_all = len(step_rows.draw_rows) == num_seqs == num_tokens == a.num_rows
        if draws_all and not states.edits and not states.grammar_masks:
            self._repeat = _Repeat(a, rows, step_rows)
        return step_rows

    def fill_again(self, states: RequestStates) -> StepRows | None:
        """Fills the arrays for one more token of each request of the step before, touching only
        what differs, so that they hold what fill() would write; None where it is not that simple.

        Since that step no request may have come, gone, or had a block replaced.
        """
        again = self._repeat
        if again is None or states.edits or states.grammar_masks:
            return None
        enters_block = False
        for i, row in enumerate(again.row_list):
            position = again.positions[i] + 1
            num_tokens = position + 1
            if (states.num_computed_view[row] != position
                    or states.num_tokens_view[row] != num_tokens):
                return None
            again.positions[i] = position
            again.context_len[i] = again.draw_position[i] = num_tokens
            again.token_ids[i] = states.token_ids_view[row, position]
            again.slots[0, i] += 1
            enters_block = enters_block or position % self._block_size == 0
        if enters_block:
            positions = self._arrays.positions[: len(again.rows)]
            self._fill_blocks(states, again.rows, again.rows, positions, int(positions.max()) + 1)
        return again.step_rows

    def _fill_blocks(self, states: RequestStates, rows: I64, token_rows: I64,
                     positions: npt.NDArray[np.int32], max_context: int) -> None:
        a, bs = self._arrays, self._block_size
        max_blocks = -(-max_context // bs)
        a.block_tables[0, : len(rows), :max_blocks] = states.block_table[rows, :max_blocks]
        block, offset = np.divmod(positions, np.int32(bs))
        slots = states.block_table[token_rows, block] * np.int32(bs) + offset
        a.slot_mapping[0, : len(positions)] = slots

    def _fill_rows(self, states: RequestStates, rows: I64, starts: npt.NDArray[np.int32],
                   computed: npt.NDArray[np.int32], ends: npt.NDArray[np.int32]) -> StepRows:
        a = self._arrays
        draws = np.flatnonzero(ends == states.num_tokens[rows])
        scores = np.flatnonzero(
            (states.num_prompt_logprobs[rows] > -2) & (computed < states.num_prompt[rows] - 1)
        )
        if not len(scores) and not states.num_unscored[rows].any():
            num_rows = len(draws)
            a.num_rows = num_rows
            a.logits_indices[:num_rows] = starts[1:][draws] - 1
            draw_rows = np.arange(num_rows)
            fill_draw_rows(a.sampling, states, draw_rows=draw_rows, state_rows=rows[draws],
                           num_rows=num_rows)
            return StepRows(draw_rows, rows[draws])
        return self._fill_mixed_rows(states, rows, starts, computed, ends, set(draws.tolist()),
                                     set(scores.tolist()))

    def _fill_mixed_rows(self, states: RequestStates, rows: I64,
                         starts: npt.NDArray[np.int32], computed: npt.NDArray[np.int32],
                         ends: npt.NDArray[np.int32], draws: set[int],
                         scores: set[int]) -> StepRows:
        a = self._arrays
        draw_rows: list[int] = []
        draw_states: list[int] = []
        score_rows: list[tuple[int, I64]] = []
        forced_rows: list[tuple[int, I64]] = []
        num_rows = 0
        for i, row in enumerate(rows.tolist()):
            first, begin, end = int(starts[i]), int(computed[i]), int(ends[i])
            # the row of position p scores the token at p + 1
            num_tokens = int(states.num_tokens[row])
            unscored = num_tokens - int(states.num_unscored[row])
            for scored, low, high in ((score_rows, begin, int(states.num_prompt[row]) - 1),
                                      (forced_rows, max(begin, unscored - 1), num_tokens - 1)):
                high = min(end, high)
                if low >= high or (scored is score_rows and i not in scores):
                    continue
                at = np.arange(num_rows, num_rows + high - low)
                a.logits_indices[at] = np.arange(first + low - begin, first + high - begin)
                scored.append((row, at))
                num_rows += high - low
            if i in draws:
                a.logits_indices[num_rows] = int(starts[i + 1]) - 1
                draw_rows.append(num_rows)
                draw_states.append(row)
                num_rows += 1
        a.num_rows = num_rows
        result = StepRows(np.asarray(draw_rows, np.int64), np.asarray(draw_states, np.int64),
                          tuple(score_rows), tuple(forced_rows))
        fill_draw_rows(a.sampling, states, draw_rows=result.draw_rows,
                       state_rows=result.draw_states, num_rows=num_rows)
        self._fill_targets(states, score_rows, states.num_prompt_logprobs)
        self._fill_targets(states, forced_rows, states.num_logprobs)
        return result

    def _fill_targets(self, states: RequestStates, scored: Sequence[tuple[int, I64]],
                      num_logprobs: npt.NDArray[np.int32]) -> None:
        a = self._arrays
        for row, r in scored:
            positions = a.positions[a.logits_indices[r]]
            fill_score_rows(
                a.sampling, rows=r, target_ids=states.token_ids[row, positions + 1],
                num_logprobs=np.full(len(r), num_logprobs[row], np.int32),
            )
