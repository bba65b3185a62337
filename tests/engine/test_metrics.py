"""Counters of the front end."""

import pytest

from octavo.engine.metrics import FinishedRequest, FrontEndMetrics


@pytest.mark.parametrize(("reasons", "counted"), [
    (["stop"], "stop"),
    (["stop", "length", "stop"], "length"),
    (["length", "abort"], "abort"),
    (["abort", "stop", "error"], "error"),
])
def test_a_request_counts_once(reasons: list[str], counted: str) -> None:
    metrics = FrontEndMetrics()
    metrics.observe_finished(FinishedRequest(
        reasons=reasons, num_prompt_tokens=3, num_generation_tokens=4, n=len(reasons),
        max_tokens=4, e2e_s=0.1, queued_s=None, prefill_s=None, decode_s=None))
    assert metrics.finished == {counted: 1}
    assert metrics.e2e.count == metrics.request_prompt_tokens.count == 1
