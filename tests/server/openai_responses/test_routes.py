"""/v1/responses over a scripted engine: answers, what is kept of them, streams and their ends."""

from collections.abc import Iterator
from typing import Any

import pytest

from octavo.config import ServerSection
from octavo.testing.fake_async_llm import FakeEngine, fake_async_llm
from tests.server.conftest import serving, wait_for
from tests.server.http_client import Answer, HttpClient, read_until

PATH = "/v1/responses"


def create(client: HttpClient, given: Any, **fields: Any) -> Answer:
    return client.post(PATH, {"input": given, **fields})


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message"
                   for part in item["content"])


def test_a_response(client: HttpClient) -> None:
    response = create(client, "SAY:Hello.|", instructions="Be short.", metadata={"a": "b"},
                      user="me", temperature=0.5, max_tool_calls=3, prompt_cache_key="k").json
    assert response["object"] == "response" and response["id"].startswith("resp_")
    assert response["status"] == "completed" and response["completed_at"]
    assert text_of(response) == "Hello."
    [item] = response["output"]
    assert item["content"] == [{"type": "output_text", "text": "Hello.", "annotations": [],
                                "logprobs": []}]
    assert (response["instructions"], response["metadata"], response["user"],
            response["temperature"], response["max_tool_calls"], response["prompt_cache_key"]) == (
            "Be short.", {"a": "b"}, "me", 0.5, 3, "k")
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["output_tokens"] == len("Hello.") + 1
    assert usage["input_tokens_details"] == {"cached_tokens": 0, "cache_write_tokens": 0}
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    # all that OpenAI's published schema demands
    for key in ("error", "incomplete_details", "model", "tools", "parallel_tool_calls",
                "tool_choice", "top_p", "created_at"):
        assert key in response


def test_a_cut_response(client: HttpClient) -> None:
    response = create(client, "Hi", max_output_tokens=5).json
    assert response["status"] == "incomplete" and response["completed_at"] is None
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["usage"]["output_tokens"] == 5


def test_the_stream_says_what_the_whole_answer_says(client: HttpClient) -> None:
    fields: dict[str, Any] = {"top_logprobs": 2, "include": ["message.output_text.logprobs"],
                              "seed": 1, "temperature": 1, "max_output_tokens": 12}
    for given in ("SAY:héllo 漢字|", "Hi"):
        whole = create(client, given, **fields).json
        answer = create(client, given, stream=True, **fields)
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = answer.events
        assert [e["sequence_number"] for e in events] == list(range(len(events)))
        named = [line.removeprefix("event: ") for line in answer.text.split("\n")
                 if line.startswith("event: ")]
        assert named == [e["type"] for e in events]
        assert named[:2] == ["response.created", "response.in_progress"]
        assert named[-1] == f"response.{whole['status']}"
        first, last = events[0]["response"], events[-1]["response"]
        assert first["id"] == last["id"] and first["status"] == "in_progress"
        assert first["output"] == [] and "usage" not in first
        deltas = [e for e in events if e["type"] == "response.output_text.delta"]
        assert "".join(e["delta"] for e in deltas) == text_of(last)
        assert [p for e in deltas for p in e["logprobs"]] == (
            last["output"][0]["content"][0]["logprobs"])
        for response in (whole, last):
            for key in ("id", "created_at", "completed_at"):
                del response[key]
            del response["output"][0]["id"], response["usage"]["input_tokens_details"]
        assert last == whole


@pytest.fixture(scope="module")
def thinking() -> Iterator[HttpClient]:
    section = ServerSection(reasoning_parser="think")
    with serving(fake_async_llm(server=section), section) as client:
        yield client


def test_reasoning_is_an_item(thinking: HttpClient) -> None:
    said = "SAY:<think>so</think>yes|"
    whole = create(thinking, said).json
    assert [i["type"] for i in whole["output"]] == ["reasoning", "message"]
    assert whole["output"][0]["content"] == [{"type": "reasoning_text", "text": "so"}]
    assert whole["output"][0]["summary"] == []
    details = whole["usage"]["output_tokens_details"]
    assert details["reasoning_tokens"] == len("<think>so</think>")
    events = create(thinking, said, stream=True).events
    assert {"response.reasoning_text.delta", "response.reasoning_text.done"} <= {
        e["type"] for e in events}
    last = events[-1]["response"]
    assert last["usage"]["output_tokens_details"] == details and text_of(last) == "yes"
    without = create(thinking, said, include_reasoning=False).json
    assert [i["type"] for i in without["output"]] == ["message"]


def test_going_on_from_a_response(client: HttpClient) -> None:
    first = create(client, "SAY:one|", instructions="A").json
    second = create(client, "SAY:two|", previous_response_id=first["id"]).json
    assert second["previous_response_id"] == first["id"] and second["instructions"] is None
    third = create(client, [{"role": "user", "content": "SAY:three|"}], instructions="B",
                   previous_response_id=second["id"]).json
    assert text_of(third) == "three"
    messages = [{"role": "system", "content": "B"}]
    for given, said in (("SAY:one|", "one"), ("SAY:two|", "two")):
        messages += [{"role": "user", "content": given}, {"role": "assistant", "content": said}]
    messages.append({"role": "user", "content": "SAY:three|"})
    count = client.post("/tokenize", {"messages": messages}).json["count"]
    assert third["usage"]["input_tokens"] == count


def test_what_is_kept(client: HttpClient) -> None:
    response = create(client, "SAY:one|").json
    place = f"{PATH}/{response['id']}"
    assert client.get(place).json == response
    streamed = create(client, "SAY:one|", stream=True).events[-1]["response"]
    assert client.get(f"{PATH}/{streamed['id']}").json == streamed
    gone = client.request("DELETE", place)
    assert gone.json == {"id": response["id"], "object": "response", "deleted": True}
    for answer in (client.get(place), client.request("DELETE", place),
                   client.post(f"{place}/cancel", {}), client.get(f"{place}/input_items"),
                   create(client, "Hi", previous_response_id=response["id"])):
        assert answer.status == 404
        assert answer.error()["code"] == "response_not_found"
    assert answer.error()["param"] == "previous_response_id"
    secret = create(client, "SAY:one|", store=False).json
    assert secret["store"] is False
    assert client.get(f"{PATH}/{secret['id']}").status == 404


def test_references_to_items_that_are_kept(client: HttpClient) -> None:
    first = create(client, "SAY:one|").json
    item = first["output"][0]
    question = {"role": "user", "content": "SAY:two|"}
    for reference in ({"type": "item_reference", "id": item["id"]}, {"id": item["id"]}):
        second = create(client, [reference, question]).json
        assert text_of(second) == "two"
        items = client.get(f"{PATH}/{second['id']}/input_items?order=asc").json["data"]
        assert items[0] == item
    client.request("DELETE", f"{PATH}/{first['id']}")
    answer = create(client, [reference, question])
    assert (answer.status, answer.error()["param"]) == (400, "input[0].id")


def test_cancel_and_replay_are_refused(client: HttpClient) -> None:
    place = f"{PATH}/{create(client, 'SAY:one|').json['id']}"
    answer = client.post(f"{place}/cancel", {})
    assert answer.status == 400 and "background" in answer.error()["message"]
    answer = client.get(f"{place}?stream=true")
    assert (answer.status, answer.error()["param"]) == (400, "stream")


def test_input_items_page_by_page(client: HttpClient) -> None:
    items = [{"role": "user", "content": str(i)} for i in range(6)]
    place = f"{PATH}/{create(client, [*items, {'role': 'user', 'content': 'SAY:x|'}]).json['id']}"

    def texts(query: str) -> tuple[list[str], dict[str, Any]]:
        page = client.get(f"{place}/input_items?{query}").json
        assert page["object"] == "list"
        return [item["content"][0]["text"] for item in page["data"]], page

    found, page = texts("")
    assert found == ["SAY:x|", "5", "4", "3", "2", "1", "0"] and page["has_more"] is False
    found, page = texts("order=asc&limit=3")
    assert found == ["0", "1", "2"] and page["has_more"] is True
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][2]["id"])
    found, page = texts(f"order=asc&limit=100&after={page['last_id']}")
    assert found == ["3", "4", "5", "SAY:x|"] and page["has_more"] is False
    found, page = texts(f"order=asc&after={page['last_id']}")
    assert found == [] and page["first_id"] is None
    for query, param in (("order=up", "order"), ("limit=0", "limit"), ("limit=101", "limit"),
                         ("limit=x", "limit"), ("limit=%C2%B2", "limit"), ("after=no", "after")):
        answer = client.get(f"{place}/input_items?{query}")
        assert (answer.status, answer.error()["param"]) == (400, param)


def test_input_tokens(client: HttpClient) -> None:
    first = create(client, "SAY:one|").json
    fields: dict[str, Any] = {
        "input": "And?", "instructions": "Be short.", "previous_response_id": first["id"],
        "tools": [{"type": "function", "name": "f"}], "reasoning": {"effort": "low"}}
    counted = client.post(f"{PATH}/input_tokens", fields).json
    assert counted["object"] == "response.input_tokens"
    response = client.post(PATH, fields | {"tool_choice": "none", "max_output_tokens": 1}).json
    without = client.post(f"{PATH}/input_tokens", fields | {"tool_choice": "none"}).json
    assert response["usage"]["input_tokens"] == without["input_tokens"] < counted["input_tokens"]
    answer = client.post(f"{PATH}/input_tokens", {"model": "fake-model"})
    assert (answer.status, answer.error()["param"]) == (400, "input")


def test_truncation_leaves_out_the_oldest_turns(client: HttpClient) -> None:
    items = [{"role": "developer", "content": "D"}]
    for number in range(8):
        items += [{"role": "user", "content": f"{number}" * 400},
                  {"role": "assistant", "content": "x"}]
    items.append({"role": "user", "content": "SAY:end|"})
    answer = create(client, items)
    assert (answer.status, answer.error()["code"]) == (400, "context_length_exceeded")
    cut = create(client, items, truncation="auto", max_output_tokens=100).json
    assert text_of(cut) == "end" and cut["truncation"] == "auto"
    kept = create(client, [items[0], *items[9:]], max_output_tokens=100).json
    assert cut["usage"]["input_tokens"] == kept["usage"]["input_tokens"] <= 1948
    more = create(client, [items[0], *items[7:]]).json
    assert more["error"]["param"] == "input" or more["usage"]["input_tokens"] > 1948
    # one that cannot be shortened is refused as ever
    answer = create(client, "x" * 3000, truncation="auto")
    assert (answer.status, answer.error()["code"]) == (400, "context_length_exceeded")


def test_a_failure_in_the_middle(client: HttpClient) -> None:
    with serving(fake_async_llm()) as fragile:
        events = create(fragile, "FAULT-AT-5", stream=True).events
    error, failed = events[-2:]
    assert error["type"] == "error" and set(error) == {"type", "sequence_number", "code",
                                                       "message", "param"}
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": error["message"]}
    assert [e["sequence_number"] for e in events] == list(range(len(events)))


def test_a_client_that_leaves_ends_its_request(engine: FakeEngine, client: HttpClient) -> None:
    for stream in (True, False):
        engine.executor.step_s = 0.002
        try:
            with client.open_raw(PATH, {"input": "Hi", "stream": stream}) as sock:
                if stream:
                    read_until(sock, b"output_text.delta")
                else:
                    wait_for(lambda: client.metric("octavo:num_requests_running") == 1)
            wait_for(lambda: client.metric("octavo:num_requests_running") == 0)
        finally:
            engine.executor.step_s = 0.0
    assert text_of(create(client, "SAY:fine|").json) == "fine"


def test_ids_that_clients_choose(client: HttpClient) -> None:
    assert create(client, "SAY:a|", request_id="mine").json["id"] == "resp_mine"
    answer = create(client, "SAY:b|", request_id="mine")
    assert (answer.status, answer.error()["param"]) == (400, "request_id")
    assert text_of(client.get(f"{PATH}/resp_mine").json) == "a"


def test_sampling_names_of_other_servers(client: HttpClient) -> None:
    response = create(client, "Hi", max_output_tokens=40, min_p=0.1, top_k=3, stop=["m"],
                      repetition_penalty=1.1, ignore_eos=True, cache_salt="s").json
    assert response["status"] == "completed" and "m" not in text_of(response)
