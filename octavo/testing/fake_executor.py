"""FakeExecutor: an executor without a model that knows whether the scheduler told it the truth.

It follows the worker's contract (octavo.core.step) to the letter over a fake KV store: each slot
holds the fingerprint of the token written there *and of every token before it*, which is what real
KV depends on. A wrong share, a missed copy on write or a stale block is therefore a mismatch, and
every mismatch is an AssertionError. Tokens drawn depend only on a request's own tokens, so a
request must get the same output in any batch (`lone_output` says which).
"""

import dataclasses
from collections.abc import Sequence

from octavo.core.messages import EngineCoreRequest, TokenLogprobs
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import (
    CachedRequestData,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from octavo.executor.seam import StepHandle

_MASK = 2**64 - 1


def _mix(state: int, value: int) -> int:
    """One step of a 64-bit fingerprint (the finalizer of splitmix64)."""
    z = (state * 0x9E3779B97F4A7C15 + value + 1) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _first_fingerprint(params: SamplingParams) -> int:
    """Where a history starts. Differs by salt, so that KV shared across salts is a mismatch."""
    state = 1
    for byte in (params.cache_salt or "").encode():
        state = _mix(state, byte)
    return state


def _draw(
    fingerprint: int, params: SamplingParams, *, seed: int, sample_index: int, vocab_size: int
) -> int:
    if not params.greedy:
        fingerprint = _mix(_mix(fingerprint, seed), sample_index)
    return _mix(fingerprint, 0) % vocab_size


def forced_after(fingerprint: int, params: SamplingParams, vocab_size: int) -> list[int]:
    """What a make-believe grammar forces behind a history, for requests that have one."""
    state = _mix(fingerprint, 1)
    if params.structured_outputs is None or state % 3:
        return []
    return [_mix(state, i) % vocab_size for i in range(1 + state // 3 % 9)]


def lone_output(
    request: EngineCoreRequest, *, vocab_size: int, max_model_len: int, capacity_tokens: int
) -> list[int]:
    """The output of a request that runs alone, by the rules of the user guide."""
    state = _first_fingerprint(request.params)
    for token_id in request.prompt_token_ids:
        state = _mix(state, token_id)
    num_prompt = len(request.prompt_token_ids)
    output: list[int] = []
    # a prompt that fills the context has one token behind it, which is never computed
    room = max(1, min(max_model_len, capacity_tokens + 1) - num_prompt)
    most = min(request.max_tokens, room)
    stops = {*request.eos_token_ids, *(request.params.stop_token_ids or ())}
    forced: list[int] = []
    while True:
        if forced:
            token_id = forced.pop(0)
        else:
            token_id = _draw(
                state,
                request.params,
                seed=request.seed,
                sample_index=request.sample_index,
                vocab_size=vocab_size,
            )
            forced = forced_after(_mix(state, token_id), request.params, vocab_size)
        output.append(token_id)
        state = _mix(state, token_id)
        if len(output) >= most or (
            len(output) >= request.params.min_tokens and token_id in stops
        ):
            return output


@dataclasses.dataclass(slots=True, eq=False)
class _Row:
    """What the worker knows of a request. fingerprints[p]: history up to and with position p."""

    data: NewRequestData
    token_ids: list[int]
    fingerprints: list[int]
    block_table: list[int]
    num_computed_tokens: int
    fresh_blocks: frozenset[int]  # entered the table in this step
    num_unscored_tokens: int = 0

    def append(self, token_id: int) -> None:
        params = self.data.params
        before = self.fingerprints[-1] if self.fingerprints else _first_fingerprint(params)
        self.token_ids.append(token_id)
        self.fingerprints.append(_mix(before, token_id))


class FakeExecutor:
    """submit, collect. It plays the grammar, too (forced_after).

    With check_kv=False only tokens are drawn (for long, big simulations).
    """

    def __init__(
        self, *, num_blocks: int, block_size: int, vocab_size: int, check_kv: bool = True
    ) -> None:
        self.failing: set[str] = set()  # requests for which nothing can be drawn
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._check_kv = check_kv
        self._slots: list[list[int | None]] = (
            [[None] * block_size for _ in range(num_blocks)] if check_kv else []
        )
        self._rows: dict[str, _Row] = {}
        self._results: dict[int, ModelRunnerOutput] = {}
        self.num_copies = 0
        self.num_shared_in_step = 0  # blocks read in the step that wrote them, by another request

    def submit(self, step: SchedulerOutput) -> int:
        """Run the step; the handle is for collect."""
        for request_id in step.finished_request_ids:
            del self._rows[request_id]
        for new in step.new_requests:
            self._add(new)
        for cached in step.cached_requests:
            self._update(cached)
        named = [cached.request_id for cached in step.cached_requests]
        named += [new.request_id for new in step.new_requests]
        assert named == list(step.num_scheduled_tokens), "rows and data do not match"
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            row = self._rows[request_id]
            end = row.num_computed_tokens + num_tokens
            assert num_tokens > 0 and end <= len(row.token_ids), f"{request_id}: no such tokens"
            assert end <= len(row.block_table) * self._block_size, f"{request_id}: no slots"
        if self._check_kv:
            self._copy_blocks(step)
            self._write(step)
            self._read(step)
        self._results[step.step_id] = self._sample(step)
        return step.step_id

    def collect(self, handle: StepHandle) -> ModelRunnerOutput:
        assert isinstance(handle, int)
        return self._results.pop(handle)

    def describe(self) -> dict[str, str]:
        return {"backend": "fake"}

    def shutdown(self) -> None:
        self._rows.clear()

    def _add(self, new: NewRequestData) -> None:
        assert new.request_id not in self._rows, f"{new.request_id} is here already"
        row = _Row(new, [], [], list(new.block_ids), new.num_computed_tokens, frozenset())
        row.fresh_blocks = frozenset(new.block_ids)
        row.num_unscored_tokens = new.num_unscored_tokens
        for token_id in new.token_ids:
            row.append(token_id)
        self._rows[new.request_id] = row

    def _update(self, cached: CachedRequestData) -> None:
        row = self._rows[cached.request_id]
        assert cached.num_computed_tokens >= row.num_computed_tokens, "computed tokens fell"
        row.num_computed_tokens = cached.num_computed_tokens
        row.num_unscored_tokens = cached.num_unscored_tokens
        for token_id in cached.new_token_ids:
            row.append(token_id)
        for index, block_id in cached.replaced_blocks:
            row.block_table[index] = block_id
        row.block_table += cached.new_block_ids
        row.fresh_blocks = frozenset(cached.new_block_ids)

    def _copy_blocks(self, step: SchedulerOutput) -> None:
        for copy in step.transfer_plan.copies:
            assert 0 < copy.num_slots <= self._block_size and copy.src_block_id != copy.dst_block_id
            source = self._slots[copy.src_block_id]
            self._slots[copy.dst_block_id][: copy.num_slots] = source[: copy.num_slots]
            self.num_copies += 1

    def _write(self, step: SchedulerOutput) -> None:
        """Write every KV slot of the step, and check that each written block has one owner."""
        size = self._block_size
        holders: dict[int, list[tuple[_Row, int]]] = {}
        for request_id in step.num_scheduled_tokens:
            # Whoever does not run hears of changes to its table when it does; what it reads then
            # says whether anyone wrote there meanwhile.
            row = self._rows[request_id]
            assert len(set(row.block_table)) == len(row.block_table), "a block twice in a table"
            for index, block_id in enumerate(row.block_table):
                holders.setdefault(block_id, []).append((row, index))
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            row = self._rows[request_id]
            start, end = row.num_computed_tokens, row.num_computed_tokens + num_tokens
            for index in range(start // size, -(-end // size)):
                block_id = row.block_table[index]
                for other, other_index in holders[block_id]:
                    if other is not row:
                        # Sharing what is being written is fine for whoever took the block in this
                        # step as a whole, at the same place of the same history.
                        self.num_shared_in_step += 1
                        assert (
                            other_index == index
                            and block_id in other.fresh_blocks
                            and other.num_computed_tokens >= (index + 1) * size
                        ), f"{request_id} writes block {block_id}, which is shared"
            for p in range(start, end):
                self._slots[row.block_table[p // size]][p % size] = row.fingerprints[p]

    def _read(self, step: SchedulerOutput) -> None:
        """Every position a request attends to must hold that request's own history."""
        size = self._block_size
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            row = self._rows[request_id]
            end = row.num_computed_tokens + num_tokens
            seen: list[int | None] = []
            for block_id in row.block_table[: -(-end // size)]:
                seen += self._slots[block_id]
            assert seen[:end] == row.fingerprints[:end], f"{request_id} reads another history"

    def _sample(self, step: SchedulerOutput) -> ModelRunnerOutput:
        output = ModelRunnerOutput(step_id=step.step_id, sampled_token_ids={}, num_native_calls=1)
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            row = self._rows[request_id]
            data, start = row.data, row.num_computed_tokens
            row.num_computed_tokens += num_tokens
            if data.params.prompt_logprobs is not None:
                last = min(row.num_computed_tokens + 1, data.num_prompt_tokens)
                scored = row.token_ids[start + 1 : last]
                if scored:
                    output.prompt_logprobs[request_id] = _fake_logprobs(scored)
            if row.num_unscored_tokens:
                first = len(row.token_ids) - row.num_unscored_tokens
                assert start < first, f"{request_id}: no row to score token {first}"
                scored = row.token_ids[first : row.num_computed_tokens + 1]
                output.logprobs[request_id] = _fake_logprobs(scored)
            if row.num_computed_tokens < len(row.token_ids):
                continue
            if request_id in self.failing:
                output.failed[request_id] = "no token can be drawn"
                continue
            token_id = _draw(
                row.fingerprints[-1],
                data.params,
                seed=data.seed,
                sample_index=data.sample_index,
                vocab_size=self._vocab_size,
            )
            row.append(token_id)
            output.sampled_token_ids[request_id] = [token_id]
            if data.params.logprobs is not None:
                output.logprobs.setdefault(request_id, []).extend(_fake_logprobs([token_id]))
            forced = forced_after(row.fingerprints[-1], data.params, self._vocab_size)
            if forced:
                output.forced_token_ids[request_id] = forced
        return output


def _fake_logprobs(token_ids: Sequence[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(t, -1.0, 1, [t], [-1.0]) for t in token_ids]
