"""ModelRunner: SchedulerOutput in, one native call, ModelRunnerOutput out.

Keeps request states in step with the scheduler's decisions. It decides nothing itself, never
imports the scheduler, and knows a model only as a LoadedModel.
"""

import logging

import numpy as np
import numpy.typing as npt

from octavo.backends.seam import LoadedModel
from octavo.core.messages import TokenLogprobs
from octavo.core.step import ModelRunnerOutput, SchedulerOutput
from octavo.graph.step_arrays import StepArrays, StepLimits, StepOutputs
from octavo.worker.input_batch import InputBatch, StepRows
from octavo.worker.request_states import RequestStates
from octavo.worker.sampling.logprobs import row_logprobs, rows_logprobs

logger = logging.getLogger(__name__)

I64 = npt.NDArray[np.int64]

NOTHING_TO_DRAW = (
    "no token can be drawn: allowed_token_ids, logit_bias, bad_words, min_tokens and "
    "structured_outputs together ban every token"
)
NO_NUMBERS = (
    "the model gives no numbers: its scores for the next token are not finite, though the request "
    "leaves tokens to draw; its file is damaged, or its values overflow"
)


class ModelRunner:
    """One loaded model and the requests running on it. One caller at a time."""

    def __init__(self, model: LoadedModel, limits: StepLimits, *, block_size: int,
                 max_model_len: int) -> None:
        self._model = model
        self._arrays = StepArrays(limits)
        self._batch = InputBatch(self._arrays, block_size=block_size)
        self._last_ids: list[str] = []
        self._states = RequestStates(
            max_num_seqs=limits.max_seqs, max_model_len=max_model_len,
            max_blocks_per_seq=limits.max_blocks_per_seq, vocab_size=limits.vocab_size,
        )

    def execute(self, so: SchedulerOutput) -> ModelRunnerOutput:
        """Runs one step. KV copies happen before the step's first write."""
        for request_id in so.finished_request_ids:
            self._states.remove(request_id)
        copies = so.transfer_plan.copies
        if copies:
            self._model.copy_slots(
                [(c.src_block_id, c.dst_block_id, c.num_slots) for c in copies]
            )
        self._apply(so)
        if not so.num_scheduled_tokens:
            return ModelRunnerOutput(step_id=so.step_id, sampled_token_ids={})
        request_ids = list(so.num_scheduled_tokens)
        again = self._batch.fill_again(self._states) if self._repeats(so, request_ids) else None
        if again is None:
            rows, num_scheduled = self._step_rows(so.num_scheduled_tokens)
            step_rows = self._batch.fill(self._states, rows, num_scheduled)
        else:
            step_rows = again
        self._last_ids = request_ids
        outputs = self._model.step(self._arrays)
        result = self._collect(so.step_id, step_rows, outputs)
        computed, row_of = self._states.num_computed_view, self._states.row_of
        for request_id, num_tokens in so.num_scheduled_tokens.items():
            computed[row_of[request_id]] += num_tokens
        return result

    def _repeats(self, so: SchedulerOutput, request_ids: list[str]) -> bool:
        """Whether the step runs the requests of the last one, a token each. Long runs of decode
        steps do: most of what a step costs in Python is then saved."""
        return (request_ids == self._last_ids and not so.new_requests
                and sum(so.num_scheduled_tokens.values()) == len(request_ids)
                and not any(c.replaced_blocks for c in so.cached_requests))

    def _apply(self, so: SchedulerOutput) -> None:
        states = self._states
        for new in so.new_requests:
            states.add(new)
        for cached in so.cached_requests:
            states.update(cached)
        states.grammar_masks = {
            states.row_of[request_id]: np.frombuffer(mask, np.uint32)
            for request_id, mask in so.masks.items()
        }

    def _step_rows(
        self, scheduled: dict[str, int]
    ) -> tuple[I64, I64]:
        n, row_of = len(scheduled), self._states.row_of
        rows = np.fromiter((row_of[r] for r in scheduled), np.int64, n)
        return rows, np.fromiter(scheduled.values(), np.int64, n)

    def _collect(self, step_id: int, step_rows: StepRows,
                 outputs: StepOutputs) -> ModelRunnerOutput:
        states = self._states
        sampled: dict[str, list[int]] = {}
        logprobs: dict[str, list[TokenLogprobs]] = {}
        failed: dict[str, str] = {}
        broken: set[str] = set()
        for row, r in step_rows.forced_rows:
            logprobs[states.ids[row]] = rows_logprobs(outputs, r, int(states.num_logprobs[row]))
        every = len(step_rows.draw_list) == len(outputs.sampled)
        drawn = outputs.sampled if every else outputs.sampled[step_rows.draw_rows]
        for i, token_id in enumerate(drawn.tolist()):
            row = step_rows.state_list[i]
            request_id = states.ids[row]
            if token_id < 0:
                if states.bans_everything(row):
                    failed[request_id] = NOTHING_TO_DRAW
                else:
                    failed[request_id] = NO_NUMBERS
                    broken.add(request_id)
                    logger.error("request %s ends: the model's scores are not finite", request_id)
                continue
            states.append_token(row, token_id)
            sampled[request_id] = [token_id]
            wanted = states.num_logprobs_view[row]
            if wanted >= 0:
                entry = row_logprobs(outputs, step_rows.draw_list[i], wanted)
                logprobs.setdefault(request_id, []).append(entry)
        prompt_logprobs = {
            states.ids[row]: rows_logprobs(outputs, r, int(states.num_prompt_logprobs[row]))
            for row, r in step_rows.score_rows
        }
        return ModelRunnerOutput(
            step_id=step_id, sampled_token_ids=sampled, logprobs=logprobs,
            prompt_logprobs=prompt_logprobs, failed=failed, broken=frozenset(broken),
            num_native_calls=outputs.num_native_calls, num_merged_rows=outputs.num_merged_rows,
        )

    def close(self) -> None:
        """Frees the model. Idempotent."""
        self._model.close()
