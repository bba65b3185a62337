"""Requests for the KV tests."""

from collections.abc import Callable

import pytest

from octavo.core.messages import EngineCoreRequest
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams

RequestMaker = Callable[..., Request]


@pytest.fixture
def make() -> RequestMaker:
    """make(tokens, cache_salt=..., ...): a Request with a fresh id; keywords are its params."""
    count = iter(range(1000))

    def build(tokens: list[int], **params: object) -> Request:
        index = next(count)
        message = EngineCoreRequest(
            request_id=f"r{index}",
            prompt_token_ids=tokens,
            params=SamplingParams(**params),  # type: ignore[arg-type]
            eos_token_ids=[],
            seed=0,
            max_tokens=100,
        )
        return Request.from_message(message, arrival_index=index, now_s=0.0)

    return build
