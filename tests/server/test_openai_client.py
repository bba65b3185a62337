"""The OpenAI client against a real server and model: what users do first."""

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from tests.server.process import ServerProcess

MODEL = "SmolLM2-135M-Instruct"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(real_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=real_server.client.base_url + "/v1", api_key="none",
                max_retries=0) as client:
        yield client


def test_models(client: OpenAI) -> None:
    names = [model.id for model in client.models.list()]
    assert names[0] == MODEL and "smollm2-135m" in names
    assert client.models.retrieve("smollm2-135m").owned_by == "octavo"
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        client.models.retrieve("no-such-model")


def test_capital_of_france(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="The capital of France is",
                                       temperature=0, max_tokens=8)
    assert "Paris" in answer.choices[0].text


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0,
                                            max_completion_tokens=32)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.refusal is None
    assert "Paris" in (choice.message.content or "")
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.system_fingerprint


def test_streamed_chat_equals_the_whole_answer(client: OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0,
                                           max_tokens=24)
    chunks = list(client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=24, stream=True,
        stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_streaming_helper(client: OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0,
                                        max_tokens=16) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content


def test_logprobs(client: OpenAI) -> None:
    chat = client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0,
                                          max_tokens=6, logprobs=True, top_logprobs=3)
    assert chat.choices[0].logprobs is not None
    content = chat.choices[0].logprobs.content
    assert content is not None and len(content) == chat.usage.completion_tokens  # type: ignore[union-attr]
    for item in content:
        assert len(item.top_logprobs) == 3
        # greedy: the drawn token is the most likely one
        assert item.token == item.top_logprobs[0].token
        assert item.logprob == item.top_logprobs[0].logprob <= 0
        assert bytes(item.bytes or []).decode("utf-8", "replace") == item.token
    text = client.completions.create(model=MODEL, prompt="The sea is", temperature=0,
                                     max_tokens=6, logprobs=2)
    logprobs = text.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens is not None
    assert "".join(logprobs.tokens) == text.choices[0].text
    assert logprobs.text_offset == sorted(logprobs.text_offset or [])


def test_n_and_seed(client: OpenAI) -> None:
    def draw(seed: int) -> list[str]:
        answer = client.completions.create(model=MODEL, prompt="Once upon a time", n=2, seed=seed,
                                           temperature=1, max_tokens=12)
        assert [c.index for c in answer.choices] == [0, 1]
        return [c.text for c in answer.choices]

    first = draw(7)
    assert first == draw(7)
    assert first[0] != first[1]
    assert first != draw(8)


def test_stop_and_max_tokens(client: OpenAI) -> None:
    plain = client.completions.create(model=MODEL, prompt="1, 2, 3, 4,", temperature=0,
                                      max_tokens=24)
    text = plain.choices[0].text
    assert plain.choices[0].finish_reason == "length"
    assert plain.usage is not None and plain.usage.completion_tokens == 24
    marker = text[5:8]  # somewhere, wherever token borders are
    stopped = client.completions.create(model=MODEL, prompt="1, 2, 3, 4,", temperature=0,
                                        max_tokens=24, stop=[marker])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].text == text[:text.index(marker)]


def test_a_system_message_in_parts(client: OpenAI) -> None:
    def ask(content: object) -> str | None:
        messages = [{"role": "user", "content": content}]
        answer = client.chat.completions.create(model=MODEL, messages=messages,  # type: ignore[arg-type]
                                                temperature=0, max_tokens=8)
        return answer.choices[0].message.content

    assert ask("Name a tree.") == ask([{"type": "text", "text": "Name a tree."}])


def test_a_prompt_rendered_by_the_client(client: OpenAI) -> None:
    chat = client.chat.completions.create(
        model=MODEL, temperature=0, max_tokens=8,
        messages=[{"role": "system", "content": "You are terse."},
                  {"role": "user", "content": "Name a colour."}])
    text = client.completions.create(
        model=MODEL, temperature=0, max_tokens=8,
        prompt="<|im_start|>system\nYou are terse.<|im_end|>\n<|im_start|>user\nName a colour."
               "<|im_end|>\n<|im_start|>assistant\n")
    assert chat.usage is not None and text.usage is not None
    assert chat.usage.prompt_tokens == text.usage.prompt_tokens
    assert chat.choices[0].message.content == text.choices[0].text


def test_errors_have_the_clients_types(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="other", messages=QUESTION)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt="word " * 9000, stream=True)
    assert long.value.code == "context_length_exceeded"
    assert long.value.request_id
