"""A scripted server for the Responses API."""

from collections.abc import Iterator

import pytest

from octavo.testing.fake_async_llm import FakeEngine, fake_async_llm
from tests.server.conftest import serving
from tests.server.http_client import HttpClient


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return fake_async_llm(max_model_len=2048, num_blocks=1024)


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> Iterator[HttpClient]:
    with serving(engine) as client:
        yield client
