"""Whole answers of both generation routes: shapes, counts, echo, logprobs, n."""

import json
from collections.abc import Iterator

import pytest

from octavo.testing.byte_tokenizer import EOS_ID
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving
from tests.server.http_client import HttpClient
from tests.server.process import ServerProcess


@pytest.fixture(scope="module")
def client() -> Iterator[HttpClient]:
    with serving(fake_async_llm()) as client:
        yield client


def test_completion_shape(client: HttpClient) -> None:
    answer = client.complete("SAY:yes|", max_tokens=10, seed=7).json
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    (choice,) = answer["choices"]
    assert choice == {"index": 0, "text": "yes", "logprobs": None, "finish_reason": "stop",
                      "stop_reason": None, "seed": 7}
    assert answer["usage"] == {
        "prompt_tokens": 8, "completion_tokens": 4, "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 0}}


def test_chat_shape(client: HttpClient) -> None:
    answer = client.chat("SAY:yes|", seed=7).json
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice == {
        "index": 0, "message": {"role": "assistant", "content": "yes", "refusal": None},
        "logprobs": None, "finish_reason": "stop", "stop_reason": None, "seed": 7}


def test_default_lengths(client: HttpClient) -> None:
    assert client.complete("abc").json["usage"]["completion_tokens"] == 16
    chat = client.chat("abc").json
    assert chat["usage"]["total_tokens"] == 512  # the rest of the context
    assert chat["choices"][0]["finish_reason"] == "length"
    assert client.chat("a", max_tokens=9, max_completion_tokens=3
                       ).json["usage"]["completion_tokens"] == 3


def test_seed_of_the_answer_repeats_it(client: HttpClient) -> None:
    first = client.complete("abc", temperature=1, n=2).json["choices"]
    again = client.complete("abc", temperature=1, n=2, seed=first[0]["seed"]).json["choices"]
    assert [c["text"] for c in first] == [c["text"] for c in again]
    assert first[0]["text"] != first[1]["text"]


def test_negative_seeds_are_seeds(client: HttpClient) -> None:
    def text(seed: int) -> tuple[str, int]:
        choice = client.complete("abc", temperature=1, seed=seed).json["choices"][0]
        return choice["text"], choice["seed"]

    assert text(-5) == text(-5) == text(2**64 - 5)
    assert text(-(2**63))[1] == 2**63
    assert text(-5)[0] != text(5)[0]
    assert text(-1)[1] != text(-1)[1]  # drawn


def test_lists_of_prompts_and_n(client: HttpClient) -> None:
    answer = client.complete(["SAY:one|", "SAY:two|"], n=2, echo=True, max_tokens=5).json
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in answer["choices"]] == [
        "SAY:one|one", "SAY:one|one", "SAY:two|two", "SAY:two|two"]
    # every prompt counts once, every choice's tokens count
    assert answer["usage"]["prompt_tokens"] == 16
    assert answer["usage"]["completion_tokens"] == 16
    ids = client.complete([[97, 98], [99]], echo=True, max_tokens=1).json["choices"]
    assert [c["text"][:-1] for c in ids] == ["ab", "c"]
    mixed = client.complete(["ab", [97, 98]], max_tokens=3, temperature=0).json["choices"]
    assert mixed[0]["text"] == mixed[1]["text"]


def test_control_tokens_of_a_raw_prompt_are_meant(client: HttpClient) -> None:
    assert client.complete("a<|im_end|>b", max_tokens=1).json["usage"]["prompt_tokens"] == 3


def test_control_tokens_of_a_chat_message_are_text(client: HttpClient) -> None:
    plain = client.chat("", max_tokens=1).json["usage"]["prompt_tokens"]
    typed = client.chat("<|im_end|>", max_tokens=1).json["usage"]["prompt_tokens"]
    assert typed == plain + len("<|im_end|>")


def test_echo_scores_the_prompt(client: HttpClient) -> None:
    choice = client.complete("héy", max_tokens=2, echo=True, logprobs=2).json["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"][:4] == ["h", "bytes:\\xc3", "bytes:\\xa9", "y"]
    assert logprobs["text_offset"][:5] == [0, 1, 1, 2, 3]
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert len(logprobs["tokens"]) == 6
    assert {len(v) for k, v in logprobs.items()} == {6}
    # each token is among its own alternatives, as clients that look for the argmax need
    for token, top in zip(logprobs["tokens"][1:], logprobs["top_logprobs"][1:]):
        assert token in top


def test_listed_tokens_are_the_alternatives(client: HttpClient) -> None:
    """Of a chat or a text, in the order of the list, whether logprobs are asked for or not."""
    listed = [ord("b"), ord("a"), ord("z")]
    fields = {"max_tokens": 2, "temperature": 0, "logprob_token_ids": listed}
    chat = client.chat("SAY:xy|", **fields).json["choices"][0]["logprobs"]["content"]
    assert len(chat) == 2
    for item in chat:
        assert [top["token"] for top in item["top_logprobs"]] == ["b", "a", "z"]
    text = client.complete("SAY:xy|", **fields).json["choices"][0]["logprobs"]
    for token, top in zip(text["tokens"], text["top_logprobs"]):
        assert list(top) == ["b", "a", "z", token]
    for more in ({"logprobs": True, "top_logprobs": 2}, {"logprob_token_ids": [999]},
                 {"logprob_token_ids": []}):
        refused = client.chat("x", **(fields | more))
        assert refused.status == 400 and "logprob" in refused.error()["param"]


def test_max_tokens_zero_scores_and_generates_nothing(client: HttpClient) -> None:
    for stream in (False, True):
        answer = client.complete("Reply", max_tokens=0, echo=True, logprobs=1, stream=stream)
        body = answer.events[0] if stream else answer.json
        choice = body["choices"][0]
        assert choice["text"] == "Reply" and choice["finish_reason"] == "length"
        assert choice["logprobs"]["tokens"] == list("Reply")
    assert client.complete("Reply", max_tokens=0, echo=True).json["usage"] == {
        "prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0}}


def test_a_prompt_that_fills_the_context_can_be_scored(client: HttpClient) -> None:
    prompt = [97] * 512
    for more in ({"logprobs": 1}, {}, {"logprobs": 1, "stream": True}, {"logprobs": 1, "n": 2}):
        answer = client.complete(prompt, max_tokens=0, echo=True, **more)
        assert answer.status == 200, answer.text
    body = client.complete(prompt, max_tokens=0, echo=True, logprobs=1).json
    assert len(body["choices"][0]["logprobs"]["token_logprobs"]) == 512
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (512, 0)
    for length, max_tokens in ((512, 1), (513, 0)):
        refused = client.complete([97] * length, max_tokens=max_tokens, echo=True, logprobs=1)
        assert (refused.status, refused.error()["code"]) == (400, "context_length_exceeded")


def test_the_default_length_is_cut_to_the_room_left(client: HttpClient) -> None:
    answer = client.complete([97] * 505)
    assert answer.status == 200
    assert answer.json["usage"]["completion_tokens"] == 7
    assert client.complete([97] * 505, max_tokens=16).error()["param"] == "max_tokens"


def test_completion_logprobs(client: HttpClient) -> None:
    none = client.complete("a", max_tokens=3).json["choices"][0]["logprobs"]
    assert none is None
    zero = client.complete("a", max_tokens=3, logprobs=0).json["choices"][0]["logprobs"]
    assert zero["token_logprobs"] == [-0.5] * 3
    assert all(len(top) == 1 for top in zero["top_logprobs"])
    answer = client.complete("a", max_tokens=3, logprobs=5)
    top = answer.json["choices"][0]["logprobs"]["top_logprobs"]
    assert all(len(t) == 5 for t in top)
    # an impossible token has no infinite value: JSON has none
    assert min(top[0].values()) == -9999.0
    json.loads(answer.text, parse_constant=lambda c: pytest.fail(f"{c} in the answer"))


def test_chat_logprobs(client: HttpClient) -> None:
    for fields, count in (({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 3}, 3)):
        choice = client.chat("SAY:é|", logprobs=True, **fields).json["choices"][0]
        content = choice["logprobs"]["content"]
        assert choice["logprobs"]["refusal"] is None
        assert [c["bytes"] for c in content] == [[0xC3], [0xA9], list(b"<|eos|>")]
        assert all(len(c["top_logprobs"]) == count for c in content)
        assert all(isinstance(c["token"], str) and c["logprob"] == -0.5 for c in content)


def test_prompt_logprobs(client: HttpClient) -> None:
    choice = client.complete("ab", max_tokens=1, prompt_logprobs=1).json["choices"][0]
    first, second = choice["prompt_logprobs"]
    assert first is None
    assert second == {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}
    chat = client.chat("ab", max_tokens=1, prompt_logprobs=0).json
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_token_ids(client: HttpClient) -> None:
    choice = client.complete("ab", max_tokens=2, return_token_ids=True).json["choices"][0]
    assert choice["prompt_token_ids"] == [97, 98]
    assert bytes(choice["token_ids"]).decode() == choice["text"]
    chat = client.chat("SAY:x|", return_token_ids=True).json
    assert len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]
    assert chat["choices"][0]["token_ids"] == [ord("x"), EOS_ID]


def test_stop_strings_and_ids(client: HttpClient) -> None:
    answer = client.complete("SAY:one two three|", stop="two", max_tokens=50).json
    assert answer["choices"][0]["text"] == "one "
    assert answer["choices"][0]["stop_reason"] == "two"
    kept = client.complete("SAY:one two|", stop=["two"], include_stop_str_in_output=True)
    assert kept.json["choices"][0]["text"] == "one two"
    by_id = client.complete("SAY:one two|", stop_token_ids=[ord("t")]).json["choices"][0]
    assert (by_id["text"], by_id["stop_reason"]) == ("one ", ord("t"))


def test_a_message_is_continued(client: HttpClient) -> None:
    messages = [{"role": "user", "content": "Hi"},
                {"role": "assistant", "content": [{"type": "text", "text": "SAY:more|"}]}]
    body = {"messages": messages, "continue_final_message": True}
    answer = client.post("/v1/chat/completions", body)
    assert answer.json["choices"][0]["message"]["content"] == "more"
    echoed = client.post("/v1/chat/completions", body | {"echo": True})
    assert echoed.json["choices"][0]["message"]["content"] == "SAY:more|more"
    streamed = client.post("/v1/chat/completions", body | {"echo": True, "stream": True})
    assert streamed.events[0]["choices"][0]["delta"]["content"] == "SAY:more|"


def test_cached_tokens_are_counted(client: HttpClient) -> None:
    prompt = "the river runs past the old mill and the green hill"
    for salt in ("one", "two"):
        first = client.complete(prompt, max_tokens=1, cache_salt=salt).json["usage"]
        second = client.complete(prompt, max_tokens=1, cache_salt=salt).json["usage"]
        assert first["prompt_tokens_details"]["cached_tokens"] == 0
        assert second["prompt_tokens_details"]["cached_tokens"] == 48
        assert first["prompt_tokens"] == second["prompt_tokens"] == len(prompt)


def test_best_of_answers_the_likeliest_samples(real_server: ServerProcess) -> None:
    body = {"prompt": "A story:", "max_tokens": 6, "temperature": 1.5, "seed": 7}
    drawn = real_server.client.post("/v1/completions", body | {"n": 5, "logprobs": 0}).json
    scores = {}
    for choice in drawn["choices"]:
        values = choice["logprobs"]["token_logprobs"]
        scores[choice["text"]] = sum(values) / len(values)
    wanted = sorted(scores, key=scores.__getitem__, reverse=True)[:2]
    best = real_server.client.post("/v1/completions", body | {"n": 2, "best_of": 5}).json
    assert [c["text"] for c in best["choices"]] == wanted
    assert [c["index"] for c in best["choices"]] == [0, 1]
    assert all(c["logprobs"] is None for c in best["choices"])
    assert best["usage"] == drawn["usage"] | {
        "prompt_tokens_details": best["usage"]["prompt_tokens_details"]}
