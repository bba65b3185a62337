"""SamplingParams: plain types or a typed error, so that nothing odd reaches the wire."""

from typing import Any

import msgspec
import numpy as np
import pytest

from octavo.core.sampling_params import SamplingParams
from octavo.errors import InvalidRequestError


@pytest.mark.parametrize("field, value", [
    ("n", "2"), ("n", None), ("n", 1.5), ("n", True), ("n", 0), ("n", 129),
    ("max_tokens", 2.5), ("max_tokens", 10**30), ("max_tokens", 0), ("min_tokens", "1"),
    ("top_k", 10**30), ("seed", "x"), ("seed", -2), ("seed", 2**64), ("logprobs", 1.0),
    ("truncate_prompt_tokens", 10**30), ("temperature", "hot"), ("temperature", True),
    ("temperature", float("nan")), ("top_p", float("inf")), ("ignore_eos", 1),
    ("stop", 5), ("stop", [5]), ("stop", [""]), ("stop", ["\ud800"]), ("bad_words", "word"),
    ("stop_token_ids", ["a"]), ("stop_token_ids", 5), ("allowed_token_ids", [1.5]),
    ("allowed_token_ids", []), ("cache_salt", 5), ("cache_salt", "\udfff"),
    ("logit_bias", [1]), ("logit_bias", {"a": 1.0}), ("logit_bias", {1: "a"}),
    ("logit_bias", {1: float("nan")}), ("logit_bias", {10**30: 1.0}),
    ("logprob_token_ids", []), ("logprob_token_ids", [1] * 129), ("logprob_token_ids", ["a"]),
])
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=field):
        SamplingParams(**{field: value})


def test_anything_that_is_a_number_or_a_list_becomes_plain() -> None:
    params = SamplingParams(
        n=np.int64(2), temperature=np.float32(0.5), top_p=1, max_tokens=np.int32(3),
        seed=np.uint64(2**64 - 1), stop=("a", "b"), stop_token_ids=np.array([1, 2]),
        allowed_token_ids=range(3), logit_bias={np.int64(5): np.float32(1)},
    )  # type: ignore[arg-type]
    wire = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(wire, type=SamplingParams) == params
    assert (params.n, params.seed, params.stop) == (2, 2**64 - 1, ["a", "b"])
    assert params.allowed_token_ids == [0, 1, 2] and params.logit_bias == {5: 1.0}
