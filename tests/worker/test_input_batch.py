"""InputBatch.fill_again writes what fill would, or says that it cannot."""

import numpy as np

from octavo.core.sampling_params import SamplingParams
from octavo.core.step import CachedRequestData, NewRequestData
from octavo.graph.step_arrays import StepArrays, StepLimits
from octavo.worker.input_batch import InputBatch
from octavo.worker.request_states import RequestStates

BLOCK = 16
LIMITS = StepLimits(max_tokens=64, max_seqs=4, max_rows=64, max_blocks_per_seq=8,
                    max_mask_rows=4, max_sparse=4096, vocab_size=100)


def make_states(lengths: list[int], params: SamplingParams | None = None) -> RequestStates:
    states = RequestStates(max_num_seqs=4, max_model_len=8 * BLOCK, max_blocks_per_seq=8,
                           vocab_size=100)
    for i, length in enumerate(lengths):
        states.add(NewRequestData(
            request_id=f"r{i}", token_ids=list(range(length)), num_prompt_tokens=length,
            num_computed_tokens=length - 1, block_ids=[8 * i + b for b in range(length // 16 + 1)],
            params=params or SamplingParams(temperature=0.5, top_k=i), seed=i, sample_index=0,
            eos_token_ids=(), bad_words_token_ids=()))
    return states


def used(a: StepArrays) -> dict[str, np.ndarray]:
    """What a step reads of the arrays."""
    s, t, r = a.num_seqs, a.num_tokens, a.num_rows
    blocks = -(-int(a.context_len[:s].max()) // BLOCK)
    found = {"token_ids": a.token_ids[:t], "positions": a.positions[:t],
             "query_start_loc": a.query_start_loc[: s + 1], "context_len": a.context_len[:s],
             "slots": a.slot_mapping[0, :t], "tables": a.block_tables[0, :s, :blocks],
             "logits_indices": a.logits_indices[:r]}
    for name, array in vars(a.sampling).items():
        if name in ("penalty_start", "bias_start", "report_start"):
            found[name] = array[: r + 1]
        elif name not in ("masks", "penalty_ids", "penalty_counts", "bias_ids", "bias_values",
                          "report_ids"):
            found[name] = array[:r]
    return {name: np.array(array) for name, array in found.items()}


def draw(states: RequestStates, rows: np.ndarray, step: int) -> None:
    for i, row in enumerate(rows.tolist()):
        states.append_token(row, (7 * i + step) % 100)
    states.num_computed[rows] += 1


def test_fill_again_equals_fill() -> None:
    states = make_states([3, 16, 30])
    rows, ones = np.array([2, 0, 1]), np.ones(3, np.int64)
    arrays, fresh = StepArrays(LIMITS), StepArrays(LIMITS)
    batch = InputBatch(arrays, block_size=BLOCK)
    batch.fill(states, rows, ones)
    for step in range(60):
        draw(states, rows, step)
        for i in range(3):  # blocks come when the position enters them
            if states.num_computed[i] % BLOCK == 0:
                states.update(CachedRequestData(
                    request_id=f"r{i}", num_computed_tokens=int(states.num_computed[i]),
                    new_block_ids=[8 * i + int(states.num_blocks[i])]))
        step_rows = batch.fill_again(states)
        assert step_rows is not None
        expected_rows = InputBatch(fresh, block_size=BLOCK).fill(states, rows, ones)
        assert step_rows.draw_rows.tolist() == expected_rows.draw_rows.tolist()
        assert step_rows.draw_states.tolist() == expected_rows.draw_states.tolist()
        got, expected = used(arrays), used(fresh)
        for name in expected:
            assert got[name].tolist() == expected[name].tolist(), (step, name)


def test_other_steps_are_not_repeated() -> None:
    states = make_states([5, 6])
    rows, ones = np.array([0, 1]), np.ones(2, np.int64)
    batch = InputBatch(StepArrays(LIMITS), block_size=BLOCK)
    assert batch.fill_again(states) is None  # nothing came before
    states.num_computed[0] = 2
    batch.fill(states, rows, np.array([3, 1]))  # a prompt chunk
    assert batch.fill_again(states) is None
    batch.fill(states, rows, ones)
    assert batch.fill_again(states) is None  # the last token was not drawn
    edited = make_states([5], SamplingParams(repetition_penalty=1.5))
    batch.fill(edited, rows[:1], ones[:1])
    draw(edited, rows[:1], 0)
    assert batch.fill_again(edited) is None
