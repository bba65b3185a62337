"""EngineArm: its clock, and requests that come later."""

from octavo.kvcache.manager import KVCacheManager
from octavo.reproduce.engine_arm import EngineArm, greedy_request, same_outputs
from octavo.testing.fake_executor import lone_output
from tests.reproduce.simulated import VOCAB, section, simulated_arm


def _arm() -> EngineArm:
    return simulated_arm(KVCacheManager(section(64), b""), max_model_len=64)


def test_the_clock_skips_to_who_comes_next() -> None:
    arm = _arm()
    late, later = greedy_request("late", [1, 2, 3], 4), greedy_request("later", [4, 5], 3)
    arm.add_later(later, 2000.0)
    arm.add_later(late, 1000.0)
    assert not arm.is_done
    arm.run()
    first, second = arm.records["late"], arm.records["later"]
    assert first.added_s == 1000.0 and second.added_s == 2000.0
    assert 0 < first.ttft_s < 10 and first.finished_s < 2000.0 < second.first_token_s
    assert arm.busy_s == sum(s.seconds for s in arm.samples) < 10 < arm.clock_s
    for record in (first, second):
        assert record.token_ids == lone_output(
            record.request, vocab_size=VOCAB, max_model_len=64, capacity_tokens=256)


def test_who_comes_while_others_run_joins_between_steps() -> None:
    arm = _arm()
    arm.add([greedy_request("now", [1, 2, 3], 20)])
    arm.add_later(greedy_request("soon", [7, 8], 4), 1e-9)
    arm.step()
    assert list(arm.records) == ["now"]
    arm.step()
    assert arm.records["soon"].added_s == 1e-9 and arm.samples[-1].num_running == 2
    arm.run()
    assert arm.is_done and arm.rate > 0


def test_finished_requests_may_be_answered() -> None:
    arm = _arm()
    asked = iter([greedy_request("b", [9, 9], 2)])
    arm.on_finish = lambda record: arm.add(list(asked))
    arm.add([greedy_request("a", [9, 9], 2)])
    arm.run_for(1e9)
    assert arm.outputs["a"] == arm.outputs["b"] and len(arm.outputs["a"]) == 2
    assert same_outputs([arm, arm]) and arm.num_output_tokens == 4
