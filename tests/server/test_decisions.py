"""/v1/decisions: answers are the model's own distribution, computed in one batched step."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from octavo.server.decision_questions import Labels, questions_of
from octavo.testing.byte_tokenizer import byte_tokenizer
from octavo.testing.fake_async_llm import fake_async_llm
from tests.server.conftest import serving
from tests.server.http_client import HttpClient
from tests.server.process import ServerProcess

TICKET: list[dict[str, Any]] = [
    {"role": "system", "content": "You sort letters to a shop."},
    {"role": "user", "content": [
        {"type": "input_text", "text": "My lamp came broken and nobody answers my mails!"},
        {"type": "input_json", "data": {"order": 17, "item": "lamp"}}]},
]
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "Where is order 17?"},
    {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"order":17}'},
    {"type": "function_call_output", "call_id": "c1", "output": "lost in the post"},
    {"type": "custom_tool_call", "call_id": "c2", "name": "note", "input": "call back"},
    {"type": "custom_tool_call_output", "call_id": "c2",
     "output": [{"type": "input_text", "text": "noted"}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "It is lost, sorry."}]},
]
QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "name": "angry", "instructions": "The customer is angry."},
    {"type": "choice", "name": "team", "instructions": "Which team should answer?",
     "choices": [{"value": "billing"}, {"value": "shipping", "description": "parcels"},
                 {"value": True}, {"value": "true"}]},
    {"type": "score", "instructions": [{"type": "input_text", "text": "How urgent is it?"}],
     "levels": [{"label": "low"}, {"label": "medium"}, {"label": "high", "description": "today"}]},
]


@pytest.fixture(scope="module")
def client(real_server: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=real_server.client.base_url + "/v1", api_key="none",
                max_retries=0) as client:
        yield client


def by_hand(http: HttpClient, prompt: list[int], count: int) -> tuple[list[float], float]:
    """(softmax over the first labels, their mass) from the logprobs of /v1/completions."""
    ids = [http.post("/tokenize", {"prompt": chr(65 + i), "add_special_tokens": False})
           .json["tokens"][0] for i in range(count)]
    choice = http.complete(prompt, max_tokens=1, temperature=0, logprob_token_ids=ids).json
    top = choice["choices"][0]["logprobs"]["top_logprobs"][0]
    likely = [math.exp(top[chr(65 + i)]) for i in range(count)]
    return [p / sum(likely) for p in likely], sum(likely)


def prompt_of(http: HttpClient, question: dict[str, Any]) -> list[int]:
    """The prompt of TICKET and a question, put together without the route."""
    ticket = 'My lamp came broken and nobody answers my mails!\n{"order":17,"item":"lamp"}'
    [asked] = questions_of([question], Labels(byte_tokenizer()))
    messages = [TICKET[0], {"role": "user", "content": f"{ticket}\n\n{asked.text()}"}]
    tokens: list[int] = http.post("/tokenize", {"messages": messages}).json["tokens"]
    return tokens


def test_answers_are_those_computed_from_logprobs_by_hand(
        client: OpenAI, real_server: ServerProcess) -> None:
    http = real_server.client
    decision = client.decisions.create(model="smollm2-135m", input=TICKET, questions=QUESTIONS)
    predicate, choice, score = decision.answers
    assert predicate.type == "predicate" and predicate.name == "angry"
    assert choice.type == "choice" and choice.name == "team"
    assert score.type == "score" and score.name is None
    shares, mass = by_hand(http, prompt_of(http, QUESTIONS[0]), 2)
    assert predicate.probability == pytest.approx(shares[0], rel=1e-9)
    assert predicate.label_mass == pytest.approx(mass, rel=1e-9)  # type: ignore[union-attr]
    shares, _ = by_hand(http, prompt_of(http, QUESTIONS[1]), 4)
    assert [p.value for p in choice.probabilities] == ["billing", "shipping", True, "true"]
    assert [p.probability for p in choice.probabilities] == pytest.approx(shares, rel=1e-9)
    assert choice.confidence == max(p.probability for p in choice.probabilities)
    assert choice.choice == choice.probabilities[shares.index(max(shares))].value
    shares, _ = by_hand(http, prompt_of(http, QUESTIONS[2]), 3)
    assert [(p.label, p.value) for p in score.probabilities] == [("low", 0), ("medium", 1),
                                                                 ("high", 2)]
    assert score.score == pytest.approx(shares[1] + 2 * shares[2], rel=1e-9)
    assert score.confidence == pytest.approx(max(shares), rel=1e-9)
    again = client.decisions.create(model="smollm2-135m", input=TICKET, questions=QUESTIONS)
    assert again.answers == decision.answers
    alone = [client.decisions.create(model="smollm2-135m", input=TICKET, questions=[q])
             for q in QUESTIONS]
    assert [a for one in alone for a in one.answers] == decision.answers
    assert again.usage.input_tokens == decision.usage.input_tokens
    assert again.usage.input_tokens_details.cached_tokens > 0


def test_twenty_questions_are_one_batched_step_behind_their_prefix() -> None:
    with ServerProcess("smollm2-135m", "--kv-cache-memory-bytes", "256m",
                       "--max-num-batched-tokens", "2048", "--disable-log-requests") as server:
        server.wait_ready()
        check_one_batched_step(server.client)


def check_one_batched_step(http: HttpClient) -> None:
    text = "A letter to the shop. " + " ".join(f"Line {i} of it." for i in range(40))
    questions: Any = [{"type": "predicate", "name": str(i), "instructions": f"It has line {i}."}
                      for i in range(20)]
    names = ("octavo:engine_steps_total", "octavo:prefix_cache_hits_total")
    before = [http.metric(name) for name in names]
    with OpenAI(base_url=http.base_url + "/v1", api_key="none", max_retries=0) as client:
        decision = client.decisions.create(model="smollm2-135m", input=text, questions=questions)
    steps, hits = (http.metric(name) - old for name, old in zip(names, before))
    assert [a.name for a in decision.answers] == [str(i) for i in range(20)]
    usage = decision.usage
    assert usage.output_tokens == 20 and usage.output_tokens_details.reasoning_tokens == 0
    assert usage.total_tokens == usage.input_tokens + 20
    assert steps == 2  # the prefix, then everything else
    prefix = hits / 20
    assert prefix >= 240 and prefix == int(prefix) and prefix % 16 == 0
    assert usage.input_tokens_details.cached_tokens == 0
    assert usage.input_tokens < prefix + 20 * 60


def test_calls_and_their_outputs_are_read(client: OpenAI) -> None:
    for items in (TURNS, TURNS[:3]):
        decision = client.decisions.create(
            model="smollm2-135m", input=items,  # type: ignore[arg-type]
            questions=[{"type": "predicate", "instructions": "The parcel is lost."}])
        [answer] = decision.answers
        assert answer.type == "predicate" and 0 < answer.probability < 1


@pytest.fixture(scope="module")
def fake() -> Iterator[HttpClient]:
    with serving(fake_async_llm()) as client:
        yield client


YES = {"type": "predicate", "instructions": "x"}
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}


@pytest.mark.parametrize(("body", "param"), [
    ({"questions": []}, "questions"),
    ({"questions": [YES] * 257}, "questions"),
    ({"questions": [5]}, "questions[0]"),
    ({"questions": [{"type": "essay"}]}, "questions[0].type"),
    ({"questions": [{"type": "predicate"}]}, "questions[0].instructions"),
    ({"questions": [YES, {"type": "predicate", "instructions": [IMAGE]}]},
     "questions[1].instructions[0]"),
    ({"questions": [{**YES, "name": 5}]}, "questions[0].name"),
    ({"questions": [{**YES, "type": "choice", "choices": [{"value": "a"}]}]},
     "questions[0].choices"),
    ({"questions": [{**YES, "type": "choice", "choices": [{"value": "a"}, {"value": "a"}]}]},
     "questions[0].choices"),
    ({"questions": [{**YES, "type": "choice", "choices": [{"value": "a"}, {"value": 1}]}]},
     "questions[0].choices[1].value"),
    # bytes have no token of two letters
    ({"questions": [{**YES, "type": "choice", "choices": [{"value": str(i)} for i in range(27)]}]},
     "questions[0].choices"),
    ({"questions": [{**YES, "type": "score", "levels": [{"label": str(i)} for i in range(11)]}]},
     "questions[0].levels"),
    ({"questions": [YES], "input": [{"role": "user", "content": [IMAGE]}]},
     "input[0].content[0]"),
    ({"questions": [YES], "input": []}, "input"),
    ({"questions": [YES], "input": 5}, "input"),
    ({"questions": [YES], "input": TURNS[2:]}, "input[0].call_id"),
    ({"questions": [YES], "input": [{"role": "user", "content": [
        {"type": "input_json", "data": 5}]}]}, "input[0].content[0].data"),
    ({"questions": [YES], "model": "none-such"}, "model"),
    ({"questions": [YES], "input": "x" * 600}, "input"),
])
def test_refused_by_name(fake: HttpClient, body: dict[str, Any], param: str) -> None:
    answer = fake.post("/v1/decisions", {"input": "text", **body})
    assert answer.status in (400, 404), answer.text
    assert answer.error()["param"] == param


def test_unlikely_labels_are_still_answered(fake: HttpClient) -> None:
    """The last of the labels is impossible here."""
    choice = {**YES, "type": "choice", "choices": [{"value": "a"}, {"value": False}]}
    answer = fake.post("/v1/decisions", {"input": "text", "questions": [choice, choice, YES]})
    found = answer.json["answers"]
    assert [a["type"] for a in found] == ["choice", "choice", "predicate"]
    assert found[0]["probabilities"] == [{"value": "a", "probability": 1.0},
                                         {"value": False, "probability": 0.0}]
    assert found[0]["confidence"] == 1.0 and found[0]["choice"] == "a"
    assert 0.5 < found[0]["label_mass"] < 0.7
