"""An entry is used whole or not at all."""

import random

import pytest

from octavo.core.messages import EngineCoreRequest
from octavo.core.sampling_params import SamplingParams
from octavo.reproduce.engine_arm import EngineArm
from octavo.reproduce.exact_match import ExactMatchKVCacheManager
from tests.reproduce.simulated import VOCAB, section, simulated_arm

SIZE = 4


def _arm(num_blocks: int = 64) -> EngineArm:
    kv = ExactMatchKVCacheManager(section(num_blocks, SIZE, caching=True), b"")
    return simulated_arm(kv, max_model_len=num_blocks * SIZE)


def _hits(arm: EngineArm, prompt: list[int], output: int = 3) -> tuple[int, list[int]]:
    """Prompt tokens found for a request, and its tokens."""
    name = f"r{len(arm.records)}"
    arm.add([EngineCoreRequest(
        request_id=name, prompt_token_ids=prompt, eos_token_ids=[], seed=0, max_tokens=output,
        params=SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True))])
    arm.run()
    return arm.records[name].num_cached_tokens, arm.outputs[name]


def _tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


@pytest.mark.parametrize("length", [9, 10, 11, 12, 13])
def test_a_repeated_prompt_hits(length: int) -> None:
    arm, prompt = _arm(), _tokens(length)
    assert _hits(arm, prompt)[0] == 0
    assert _hits(arm, prompt)[0] == (length - 1) // SIZE * SIZE


@pytest.mark.parametrize("length", range(8, 14))
@pytest.mark.parametrize("output", range(1, 6))
def test_the_next_turn_hits_what_was_computed(length: int, output: int) -> None:
    arm, prompt = _arm(), _tokens(length)
    _, answer = _hits(arm, prompt, output)
    hits, _ = _hits(arm, prompt + answer + _tokens(6, seed=1))
    assert hits == (length + output - 1) // SIZE * SIZE  # the last token was never computed


@pytest.mark.parametrize("common", [4, 8, 11, 12, 15])
def test_a_shared_beginning_does_not_hit(common: int) -> None:
    arm, prompt = _arm(), _tokens(16)
    _hits(arm, prompt)
    other = prompt[:common] + [(t + 1) % VOCAB for t in prompt[common:]] + _tokens(4)
    assert _hits(arm, other)[0] == 0


def test_an_entry_whose_blocks_are_evicted_is_forgotten() -> None:
    arm, prompt = _arm(num_blocks=8), _tokens(13)
    _hits(arm, prompt)
    _hits(arm, _tokens(29, seed=5))
    assert _hits(arm, prompt)[0] == 0
    assert _hits(arm, prompt)[0] == 12


def test_a_reset_forgets_everything() -> None:
    arm, prompt = _arm(), _tokens(13)
    _hits(arm, prompt)
    arm.core.reset_prefix_cache()
    assert _hits(arm, prompt)[0] == 0
