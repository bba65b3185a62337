"""ModelRunner over a model that only looks: every array of every step against plain Python."""

import dataclasses
import random
from collections.abc import Sequence

import numpy as np
import pytest

from octavo.core.sampling_params import SamplingParams
from octavo.core.step import (
    BlockCopy,
    CachedRequestData,
    NewRequestData,
    SchedulerOutput,
    TransferPlan,
)
from octavo.graph.step_arrays import StepArrays, StepLimits, StepOutputs
from octavo.worker.model_runner import ModelRunner

VOCAB = 100
BLOCK = 16
LIMITS = StepLimits(max_tokens=128, max_seqs=8, max_rows=128, max_blocks_per_seq=16,
                    max_mask_rows=8, max_sparse=4096, vocab_size=VOCAB)


class LookingModel:
    """Keeps what each step was given; draws (sum of the row's KV history) mod VOCAB.

    slots[s] holds the token written at slot s, so a wrong table or copy shows in the draw.
    ban: a token sum that cannot be drawn.
    """

    def __init__(self) -> None:
        self.slots = np.full(64 * BLOCK, -1, np.int64)
        self.copies: list[tuple[int, int, int]] = []
        self.num_rows: list[int] = []
        self.ban = -1

    def step(self, arrays: StepArrays, *, want_logits: bool = False) -> StepOutputs:
        a, t = arrays, arrays.num_tokens
        self.slots[a.slot_mapping[0, :t]] = a.token_ids[:t]
        sums = np.zeros(t, np.int64)
        for s in range(a.num_seqs):
            first, last = int(a.query_start_loc[s]), int(a.query_start_loc[s + 1])
            assert a.positions[last - 1] + 1 == a.context_len[s]
            for row in range(first, last):
                p = np.arange(a.positions[row] + 1)
                slots = a.block_tables[0, s, p // BLOCK] * BLOCK + p % BLOCK
                assert (self.slots[slots] >= 0).all(), "reads a slot nobody wrote"
                sums[row] = self.slots[slots].sum()
        rows = a.num_rows
        self.num_rows.append(rows)
        self.arrays = a
        drawn = (sums[a.logits_indices[:rows]] % VOCAB).astype(np.int32)
        targets = a.sampling.target_ids[:rows]
        sampled = np.where(targets >= 0, targets, drawn).astype(np.int32)
        sampled[drawn == self.ban] = -1
        top = np.tile(np.arange(VOCAB, dtype=np.int32), (rows, 1))
        return StepOutputs(sampled, -np.arange(rows, dtype=np.float32),
                           np.ones(rows, np.int32), top, -top.astype(np.float32), None, 1)

    def copy_slots(self, copies: Sequence[tuple[int, int, int]]) -> None:
        self.copies += copies
        for src, dst, n in copies:
            self.slots[dst * BLOCK : dst * BLOCK + n] = self.slots[src * BLOCK : src * BLOCK + n]

    def describe(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


def make() -> tuple[LookingModel, ModelRunner]:
    model = LookingModel()
    return model, ModelRunner(model, LIMITS, block_size=BLOCK, max_model_len=256)


def new(request_id: str, token_ids: list[int], block_ids: list[int], *,
        params: SamplingParams | None = None, num_prompt: int | None = None,
        num_computed: int = 0) -> NewRequestData:
    return NewRequestData(request_id, token_ids,
                          len(token_ids) if num_prompt is None else num_prompt, num_computed,
                          block_ids, params or SamplingParams(), 7, 0, (), ())


def test_random_schedules_draw_what_each_request_alone_would() -> None:
    """Chunks, decodes, joins and leaves at random; a request's tokens depend on it alone."""
    rng = random.Random(5)
    _, runner = make()
    free = list(range(64))
    rng.shuffle(free)
    live: dict[str, dict] = {}
    finished: list[str] = []
    for step in range(300):
        added: list[NewRequestData] = []
        cached: list[CachedRequestData] = []
        scheduled: dict[str, int] = {}
        for name, r in list(live.items()):
            n = min(len(r["tokens"]) - r["computed"], rng.randint(1, 20))
            need = -(-(r["computed"] + n) // BLOCK)
            blocks = [free.pop() for _ in range(need - r["blocks"])]
            r["table"] += blocks
            r["blocks"] = need
            cached.append(CachedRequestData(name, r["computed"], blocks))
            scheduled[name] = n
        if len(live) < 6 and rng.random() < 0.5:
            tokens = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 60))]
            n = min(len(tokens), rng.randint(1, 40))
            table = [free.pop() for _ in range(-(-n // BLOCK))]
            name = f"r{step}"
            live[name] = {"tokens": tokens, "computed": 0, "blocks": len(table),
                          "table": table, "prompt": len(tokens)}
            added.append(new(name, list(tokens), list(table)))
            scheduled[name] = n
        if not scheduled:
            continue
        out = runner.execute(SchedulerOutput(step, scheduled, tuple(added), tuple(cached),
                                             tuple(finished)))
        finished = []
        for name, n in scheduled.items():
            r = live[name]
            r["computed"] += n
            due = r["computed"] == len(r["tokens"])
            assert (name in out.sampled_token_ids) == due
            if due:
                assert out.sampled_token_ids[name] == [sum(r["tokens"]) % VOCAB]
                r["tokens"].append(out.sampled_token_ids[name][0])
            if len(r["tokens"]) > r["prompt"] + 10 or rng.random() < 0.02:
                free += r["table"]
                finished.append(name)
                del live[name]


def test_copies_come_first_and_tables_change() -> None:
    model, runner = make()
    runner.execute(SchedulerOutput(1, {"a": 4}, (new("a", [1, 2, 3, 4], [5]),)))
    # b shares a's block for its first three tokens, then writes into a copy
    out = runner.execute(SchedulerOutput(
        2, {"a": 1, "b": 1}, (new("b", [1, 2, 3, 9], [6], num_computed=3),),
        (CachedRequestData("a", 4, []),), (), TransferPlan((BlockCopy(5, 6, 3),))))
    assert model.copies == [(5, 6, 3)]
    assert out.sampled_token_ids == {"a": [20], "b": [15]}
    runner.execute(SchedulerOutput(
        3, {"b": 1}, (), (CachedRequestData("b", 4, [], ((0, 8),)),), ("a",),
        TransferPlan((BlockCopy(6, 8, 4),))))
    assert model.arrays.block_tables[0, 0, 0] == 8


def test_prompt_logprobs_score_every_prompt_position_once() -> None:
    model, runner = make()
    prompt = [3, 1, 4, 1, 5]
    params = SamplingParams(prompt_logprobs=2, logprobs=1)
    first = runner.execute(SchedulerOutput(1, {"a": 3, "b": 2}, (
        new("a", prompt, [0], params=params), new("b", [1, 2], [1]))))
    assert [e.token_id for e in first.prompt_logprobs["a"]] == [1, 4, 1]
    assert list(first.sampled_token_ids) == ["b"]
    second = runner.execute(SchedulerOutput(2, {"a": 2}, (), (CachedRequestData("a", 3, []),),
                                            ("b",)))
    assert [e.token_id for e in second.prompt_logprobs["a"]] == [5]
    assert second.prompt_logprobs["a"][0].top_ids == [0, 1]
    assert second.sampled_token_ids["a"] == [14]
    assert second.logprobs["a"][0].top_ids == [0]
    assert model.num_rows == [4, 2]
    third = runner.execute(SchedulerOutput(3, {"a": 1}, (), (CachedRequestData("a", 5, []),)))
    assert not third.prompt_logprobs


def test_rows_get_their_own_options() -> None:
    model, runner = make()
    odd = SamplingParams(temperature=0.5, top_k=7, top_p=0.5, min_p=0.25, repetition_penalty=2.0,
                         presence_penalty=1.0, frequency_penalty=-1.0, logit_bias={4: 2.0},
                         allowed_token_ids=[1, 33], logprobs=3, prompt_logprobs=0)
    runner.execute(SchedulerOutput(1, {"a": 2, "b": 3, "c": 1}, (
        new("a", [1, 2], [0]), new("b", [5, 5, 6], [1], params=odd), new("c", [9], [2]))))
    s = model.arrays.sampling
    # rows: a draws, b scores twice and draws, c draws
    assert s.target_ids[:5].tolist() == [-1, 5, 6, -1, -1]
    assert s.temperature[:5].tolist() == [1.0, 0.0, 0.0, 0.5, 1.0]
    assert s.top_k[:5].tolist() == [0, 0, 0, 7, 0]
    assert s.num_logprobs[:5].tolist() == [-1, 0, 0, 3, -1]
    assert s.position[[0, 3, 4]].tolist() == [2, 3, 1]
    assert s.mask_index[:5].tolist() == [-1, -1, -1, 0, -1]
    assert s.penalty_start[:6].tolist() == [0, 0, 0, 0, 2, 2]
    assert s.penalty_ids[:2].tolist() == [5, 6] and s.penalty_counts[:2].tolist() == [0, 0]
    assert s.bias_start[:6].tolist() == [0, 0, 0, 0, 1, 1]
    assert (s.bias_ids[0], s.bias_values[0]) == (4, 2.0)
    # the next step's plain rows must not inherit them
    runner.execute(SchedulerOutput(2, {"a": 1, "c": 1}, (), (
        CachedRequestData("a", 2, []), CachedRequestData("c", 1, [])), ("b",)))
    assert s.target_ids[:2].tolist() == [-1, -1] and s.mask_index[:2].tolist() == [-1, -1]
    assert s.penalty_start[:3].tolist() == s.bias_start[:3].tolist() == [0, 0, 0]


def test_nothing_to_draw_fails_that_request_alone() -> None:
    model, runner = make()
    model.ban = 3
    nothing = SamplingParams(allowed_token_ids=[2], bad_words=["x"])
    banned = dataclasses.replace(new("a", [1, 2], [0], params=nothing),
                                 bad_words_token_ids=((2,),))
    out = runner.execute(SchedulerOutput(1, {"a": 2, "b": 2}, (
        banned, new("b", [1, 3], [1]))))
    assert out.sampled_token_ids == {"b": [4]}
    assert "ban every token" in out.failed["a"] and not out.broken


def test_the_model_is_to_blame_where_the_request_leaves_a_token() -> None:
    """Bans that leave one, in a mask, in words and under a grammar, excuse no bad scores."""
    model, runner = make()
    model.ban = 3
    some = SamplingParams(allowed_token_ids=[2, 5], bad_words=["x"], logit_bias={5: -100.0})
    banned = dataclasses.replace(new("a", [1, 2], [0], params=some), bad_words_token_ids=((2,),))
    one = np.zeros(-(-VOCAB // 32), np.uint32)
    one[2] = 8
    none = np.zeros_like(one)
    out = runner.execute(SchedulerOutput(
        1, {"a": 2, "b": 2, "c": 2, "d": 2},
        (banned, new("b", [1, 2], [1]), new("c", [1, 2], [2]), new("d", [1, 2], [3])),
        masks={"c": one.tobytes(), "d": none.tobytes()}))
    assert out.broken == {"a", "b", "c"} and set(out.failed) == {"a", "b", "c", "d"}
    assert all("no numbers" in out.failed[name] for name in "abc")
    assert "ban every token" in out.failed["d"]


def test_resumed_requests_do_not_score_their_prompt_again() -> None:
    model, runner = make()
    params = SamplingParams(prompt_logprobs=1)
    out = runner.execute(SchedulerOutput(1, {"a": 5}, (
        new("a", [1, 2, 3, 4, 5], [0], params=params, num_prompt=3),)))
    assert not out.prompt_logprobs and model.num_rows == [1]


@pytest.mark.parametrize("wanted, expected", [(-1, VOCAB), (0, 0), (5, 5)])
def test_logprob_counts(wanted: int, expected: int) -> None:
    _, runner = make()
    out = runner.execute(SchedulerOutput(1, {"a": 1}, (
        new("a", [1], [0], params=SamplingParams(logprobs=wanted)),)))
    assert len(out.logprobs["a"][0].top_ids) == expected
