"""Client libraries that people put in front of servers, each from PyPI, over a socket."""

from typing import Any

import pytest

from tests.clients.environments import ClientEnvironment
from tests.server.process import ServerProcess

pytestmark = pytest.mark.full

MODEL = "SmolLM2-135M-Instruct"
LITELLM = ClientEnvironment("litellm", ("litellm==1.110.2",))
LANGCHAIN = ClientEnvironment("langchain", ("langchain-openai==1.7.4",))
INSTRUCTOR = ClientEnvironment("instructor", ("instructor==1.17.0",))


def check_city(city: dict[str, Any]) -> None:
    assert set(city) == {"name", "continent", "millions"}
    assert len(city["name"]) <= 20 and 0 <= city["millions"] <= 40
    assert city["continent"] in ("Europe", "Asia")


def test_litellm(real_server: ServerProcess) -> None:
    found = LITELLM.script("litellm_client.py", real_server.client.base_url, MODEL)
    assert set(found) == {"hosted_vllm", "openai"}
    for flows in found.values():
        assert "Paris" in flows["text"]
        assert flows["text"] == flows["streamed"] == flows["asynchronous"]
        assert flows["finish_reason"] in ("stop", "length")
        assert flows["completion_tokens"] == flows["streamed_tokens"] > 0
        assert (flows["tool"], flows["tool_finish_reason"]) == ("get_weather", "tool_calls")
        assert flows["arguments"]["city"] in ("Oslo", "Lima")
        assert len(flows["formed"]["city"]) <= 20
        assert flows["bad_value"].startswith("BadRequestError") and "temperature" in (
            flows["bad_value"])
        assert flows["bad_model"].startswith("NotFoundError")
        assert flows["too_long"].startswith("ContextWindowExceededError")


def test_langchain(real_server: ServerProcess) -> None:
    found = LANGCHAIN.script("langchain_client.py", real_server.client.base_url, MODEL)
    assert "Paris" in found["text"] and found["finish_reason"] in ("stop", "length")
    assert found["text"] == found["streamed"] == found["asynchronous"]
    assert found["batch"] == [found["text"]] * 2
    assert found["num_chunks"] > 3
    assert found["output_tokens"] == found["streamed_tokens"] > 0
    assert found["tool"] == "get_weather" and found["arguments"]["city"] in ("Oslo", "Lima")
    assert found["streamed_call"] == [found["tool"], found["arguments"]]
    assert found["after_the_tool"]
    assert found["too_long"] == "OpenAIContextOverflowError"
    for city in found["structured"].values():
        check_city(city)


def test_instructor(real_server: ServerProcess) -> None:
    found = INSTRUCTOR.script("instructor_client.py", real_server.client.base_url, MODEL)
    assert set(found) == {"TOOLS", "JSON_SCHEMA"}
    for flows in found.values():
        check_city(flows["city"])
        assert flows["partial"] == flows["city"] and flows["num_partials"] > 1
        assert flows["finish_reason"] in ("stop", "tool_calls")
