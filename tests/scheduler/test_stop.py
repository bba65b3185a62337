"""Stop conditions on tokens."""

import pytest

from octavo.core.messages import FinishReason
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.scheduler.stop import check_stop
from tests.simulation.harness import make_request

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


@pytest.mark.parametrize(
    ("output", "min_tokens", "max_tokens", "eos", "expected"),
    [
        ([5], 0, 9, True, None),
        ([0], 0, 9, True, (STOP, None)),
        ([0], 0, 9, False, None),
        ([8], 0, 9, True, (STOP, 8)),
        ([0], 2, 9, True, None),
        ([5, 0], 2, 9, True, (STOP, None)),
        ([5, 5], 0, 2, True, (LENGTH, None)),
        ([5, 8], 0, 2, True, (STOP, 8)),
        ([0, 0], 2, 2, False, (LENGTH, None)),
    ],
)
def test_check_stop(
    output: list[int],
    min_tokens: int,
    max_tokens: int,
    eos: bool,
    expected: tuple[FinishReason, int | None] | None,
) -> None:
    params = SamplingParams(min_tokens=min_tokens, stop_token_ids=[8])
    message = make_request("a", [1, 2, 3], max_tokens=max_tokens, eos=eos, params=params)
    request = Request.from_message(message, arrival_index=0, now_s=0.0)
    request.token_ids += output
    assert check_stop(request, max_model_len=100, kv_capacity_tokens=100) == expected


def test_the_context_and_the_cache_end_a_request() -> None:
    request = Request.from_message(make_request("a", [1, 2, 3]), arrival_index=0, now_s=0.0)
    request.token_ids += [5]
    assert check_stop(request, max_model_len=5, kv_capacity_tokens=4) is None
    assert check_stop(request, max_model_len=4, kv_capacity_tokens=4) == (LENGTH, None)
    assert check_stop(request, max_model_len=5, kv_capacity_tokens=3) == (LENGTH, None)
