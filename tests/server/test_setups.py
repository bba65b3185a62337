"""Servers set up as people set them up: what the counters say, a small KV cache, a template of the
user's, a tokenizer that adds BOS under a template that writes it."""

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.bug_cases.by_hand import aborted_are_counted, one_request_counts_once
from benchmarks.bug_cases.setups import Setup, setups
from tests.server.process import ServerProcess

PROMPT = "The quick brown fox jumps over the lazy dog. The quick brown fox"


def test_one_request_counts_once(real_server: ServerProcess) -> None:
    assert one_request_counts_once(real_server.client.base_url) == ""


def test_aborted_requests_are_counted(real_server: ServerProcess) -> None:
    assert aborted_are_counted(real_server.client.base_url) == ""


@dataclasses.dataclass(slots=True, frozen=True)
class Started:
    """A server of a set-up."""

    process: ServerProcess
    setup: Setup


@pytest.fixture
def started(request: pytest.FixtureRequest, model_path: Path, tmp_path: Path) -> Started:
    """The set-up that the test's parameter names."""
    (setup,) = [s for s in setups(str(model_path), tmp_path) if s.name == request.param]
    process = ServerProcess(setup.model or str(model_path), "--served-model-name",
                            setup.served_name, *setup.flags)
    request.addfinalizer(lambda: process.__exit__(None, None, None))
    process.wait_ready()
    return Started(process, setup)


@pytest.mark.full
@pytest.mark.parametrize("started", ["small_kv"], indirect=True)
def test_a_small_cache(started: Started) -> None:
    """What never fits is refused at once, and a crowd that does not fit at once says the same as
    one of it alone."""
    client = started.process.client
    refused = client.complete("word " * 900, max_tokens=4)
    assert (refused.status, refused.error()["code"]) == (400, "kv_cache_too_small")

    def text(seed: int) -> str:
        answer = client.complete(PROMPT, max_tokens=120, temperature=1, seed=seed, ignore_eos=True)
        assert answer.status == 200, answer.text
        found: str = answer.json["choices"][0]["text"]
        return found

    alone = [text(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(text, range(8))) == alone
    assert client.metric("octavo:num_preemptions_total") > 0


@pytest.mark.full
@pytest.mark.parametrize("started", ["template_B088"], indirect=True)
def test_what_a_template_raises_reaches_the_client(started: Started) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    answer = started.process.client.post("/v1/chat/completions", {"messages": messages})
    assert answer.status == 400
    assert "roles must alternate" in answer.error()["message"]


@pytest.mark.full
@pytest.mark.parametrize("started", ["llama3"], indirect=True)
def test_bos_comes_once(started: Started) -> None:
    """Written by the template, added by the tokenizer to plain prompts, never both."""
    client = started.process.client
    messages = [{"role": "user", "content": "Hi"}]
    tokens = client.post("/tokenize", {"messages": messages}).json["tokens"]
    assert tokens.count(128000) == 1 and tokens[0] == 128000
    assert client.post("/tokenize", {"prompt": "Hi"}).json["tokens"].count(128000) == 1
    answer = client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
    assert answer.json["usage"]["prompt_tokens"] == len(tokens)
