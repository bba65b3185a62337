"""EngineCore: refusals, failures, aborts."""

import pytest

from octavo.core.messages import EngineCoreRequest, FinishReason
from octavo.core.sampling_params import SamplingParams
from octavo.core.step import ModelRunnerOutput, SchedulerOutput
from octavo.errors import EngineDeadError
from tests.engine.parts import ScriptedExecutor, build_fake, config_of, core_of


def request(request_id: str, *, length: int = 4, fork_of: str | None = None,
            max_tokens: int = 4) -> EngineCoreRequest:
    return EngineCoreRequest(
        request_id=request_id, prompt_token_ids=[1] * length, params=SamplingParams(),
        eos_token_ids=[], seed=1, max_tokens=max_tokens, fork_of=fork_of)


@pytest.mark.parametrize("overlap", [False, True])
def test_requests_run_to_the_end_one_native_call_a_step(overlap: bool) -> None:
    core, _ = build_fake(config_of(), async_scheduling=overlap)
    core.add([request(f"r{i}", length=3 + 20 * i) for i in range(5)])
    done: dict[str, list[int]] = {}
    while core.has_requests:
        outputs = core.step()
        assert outputs.stats is not None
        for o in outputs.outputs:
            done.setdefault(o.request_id, []).extend(o.new_token_ids)
    assert {k: len(v) for k, v in done.items()} == {f"r{i}": 4 for i in range(5)}
    stats = core.stats()
    assert stats.num_native_calls == stats.num_steps > 0
    assert (stats.num_steps_scheduled_ahead > 0) == overlap
    assert stats.num_free_blocks == stats.num_blocks
    assert core.num_requests == 0
    core.shutdown()


def test_a_refused_request_says_why_and_takes_its_forks_along() -> None:
    core, _ = build_fake(config_of(num_blocks=2, max_model_len=200))
    core.add([request("big", length=100), request("big-1", length=100, fork_of="big"),
              request("ok")])
    outputs = {}
    while core.has_requests:
        for o in core.step().outputs:
            outputs[o.request_id] = o
    for request_id in ("big", "big-1"):
        assert outputs[request_id].finish_reason == FinishReason.ERROR
        assert outputs[request_id].error_type == "RequestTooLargeError"
        assert "100 tokens" in (outputs[request_id].error or "")
    assert outputs["ok"].finish_reason == FinishReason.LENGTH


@pytest.mark.parametrize("overlap", [False, True])
def test_a_failing_step_kills_the_core_with_one_clear_line(overlap: bool) -> None:
    core = core_of(config_of(), ScriptedExecutor("text", fail_at=2), async_scheduling=overlap)
    core.add([request("a"), request("b")])
    core.step()
    ran: list[int] = []
    with pytest.raises(EngineDeadError, match=r"2 requests were lost.*on fire"):
        core.step(lambda: ran.append(1))
    assert ran == [1], "the news of the step before are lost"
    for call in (core.step, core.reset_prefix_cache, lambda: core.add([request("c")])):
        with pytest.raises(EngineDeadError):
            call()


@pytest.mark.parametrize("overlap", [False, True])
def test_what_runs_meanwhile_runs_once_and_its_error_is_its_own(overlap: bool) -> None:
    core, _ = build_fake(config_of(), async_scheduling=overlap)
    ran: list[int] = []
    core.step(lambda: ran.append(0))  # nothing to do
    core.add([request("a", max_tokens=9)])
    core.step(lambda: ran.append(1))

    def fail() -> None:
        ran.append(2)
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        core.step(fail)
    assert core.dead is None and ran == [0, 1, 2]
    outputs = core.step()
    assert [len(o.new_token_ids) for o in outputs.outputs] == [1], "the engine goes on"
    core.shutdown()


def test_what_comes_between_steps_changes_the_prepared_one() -> None:
    core, _ = build_fake(config_of(max_num_seqs=2), async_scheduling=True)
    core.add([request("a", max_tokens=20), request("b", max_tokens=20)])
    core.step()
    assert core.is_prepared
    core.abort(["a"])
    assert [o.request_id for o in core.step().outputs] == ["b"]
    assert core.is_prepared and core.stats().num_steps_scheduled_ahead == 1
    core.add([request("c", max_tokens=20)])  # is admitted at once: the prepared step is dropped
    assert {o.request_id for o in core.step().outputs} == {"b", "c"}
    assert core.stats().num_steps_scheduled_ahead == 1
    core.add([request("d", max_tokens=20)])  # nobody can be admitted: the prepared step runs
    assert {o.request_id for o in core.step().outputs} == {"b", "c"}
    assert core.stats().num_steps_scheduled_ahead == 2
    core.abort(["b", "c", "d"])
    assert not core.is_prepared and not core.has_requests
    assert core.stats().num_free_blocks == core.stats().num_blocks
    core.shutdown()


def test_abort_frees_everything() -> None:
    core, _ = build_fake(config_of())
    core.add([request(f"r{i}", length=40, max_tokens=50) for i in range(4)])
    core.step()
    core.abort(["r0", "r1", "unknown"])
    core.abort(["r2", "r3"])
    assert not core.has_requests and core.num_requests == 0
    stats = core.stats()
    assert stats.num_free_blocks == stats.num_blocks


class _FailsOne(ScriptedExecutor):
    """Nothing can be drawn for request "bad"."""

    def collect(self, so: SchedulerOutput) -> ModelRunnerOutput:
        out = super().collect(so)
        if out.sampled_token_ids.pop("bad", None):
            out.failed["bad"] = "no token can be drawn"
        return out


def test_a_request_that_cannot_draw_fails_alone() -> None:
    core = core_of(config_of(), _FailsOne("text"))
    core.add([request("good"), request("bad")])
    reasons = {}
    while core.has_requests:
        for o in core.step().outputs:
            reasons[o.request_id] = (o.finish_reason, o.error)
    assert reasons["bad"] == (FinishReason.ERROR, "no token can be drawn")
    assert reasons["good"] == (FinishReason.LENGTH, None)
    assert core.stats().num_free_blocks == core.stats().num_blocks
