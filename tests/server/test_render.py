"""The prompt of a chat completions request, without the request."""

from collections.abc import Iterator
from typing import Any

import pytest

from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving
from tests.server.http_client import HttpClient

PATHS = ("/v1/chat/completions/render", "/apply-template")
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "SAY:yes|"}]}


@pytest.fixture(scope="module")
def client() -> Iterator[HttpClient]:
    with serving(fake_async_llm()) as client:
        yield client


def test_render(client: HttpClient) -> None:
    found = client.post(PATHS[0], CHAT | {"max_tokens": 3, "request_id": "r"}).json
    assert found["prompt"] == "<|im_start|>user\nSAY:yes|<|im_end|>\n<|im_start|>assistant\n"
    assert found["model"] == "fake-model" and found["request_id"] == "chatcmpl-r"
    usage = client.post("/v1/chat/completions", CHAT).json["usage"]
    assert found["count"] == len(found["token_ids"]) == usage["prompt_tokens"]
    text = client.post("/detokenize", {"tokens": found["token_ids"]}).json["prompt"]
    assert text == found["prompt"]
    assert client.post(PATHS[1], CHAT).json == {"prompt": found["prompt"]}
    open_turn = client.post(PATHS[1], CHAT | {"add_generation_prompt": False}).json["prompt"]
    assert found["prompt"] == open_turn + "<|im_start|>assistant\n"
    tool = {"type": "function", "function": {"name": "look_up"}}
    assert "look_up" in client.post(PATHS[0], CHAT | {"tools": [tool]}).json["prompt"]


@pytest.mark.parametrize("path", PATHS)
def test_refusals_are_those_of_the_request(client: HttpClient, path: str) -> None:
    for fields, param in (({"messages": []}, "messages"), ({"temperature": -1}, "temperature"),
                          ({"tool_choice": "required"}, "tool_choice"),
                          ({"chat_template": "{{ 7 * 7 }}"}, "chat_template")):
        answer = client.post(path, CHAT | fields)
        assert (answer.status, answer.error()["param"]) == (400, param)
    assert client.post(path, CHAT | {"model": "other"}).status == 404
