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


def test_requests_run_to_the_end_one_native_call_a_step() -> None:
    core, _ = build_fake(config_of())
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
    assert core.num_requests == 0


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


def test_a_failing_step_kills_the_core_with_one_clear_line() -> None:
    core = core_of(config_of(), ScriptedExecutor("text", fail_at=2))
    core.add([request("a"), request("b")])
    core.step()
    with pytest.raises(EngineDeadError, match=r"2 requests were lost.*on fire"):
        core.step()
    for call in (core.step, core.reset_prefix_cache, lambda: core.add([request("c")])):
        with pytest.raises(EngineDeadError):
            call()


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
