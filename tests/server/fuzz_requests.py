"""Requests as no sane client sends them: sound ones with their JSON, their bytes or their HTTP
damaged. Deterministic: a `random.Random` decides everything. Sends nothing.
"""

import copy
import dataclasses
import json
import random
from typing import Any

TOOL = {"type": "function", "function": {
    "name": "look_up", "parameters": {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
          "required": ["a", "b"], "additionalProperties": False}
ANTHROPIC_TOOL = {"name": "look_up", "input_schema": TOOL["function"]["parameters"]}  # type: ignore[index]
CHAT = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Say something."}]
ITEMS = [
    {"role": "developer", "content": "Be short."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look_up",
     "arguments": '{"city": "Rome"}', "status": "completed"},
    {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
    {"type": "custom_tool_call", "call_id": "call_2", "name": "run", "input": "ls"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": [
        {"type": "input_text", "text": "a.txt"}]},
]

# (path, body) that are answered with 200, each exercising fields of its own
SOUND: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "abc", "max_tokens": 4, "temperature": 0.5, "seed": 3}),
    ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 3, "logprobs": 2,
                         "echo": True, "stop": ["q", "z"], "logit_bias": {"97": 1}}),
    ("/v1/completions", {"prompt": [97, 98], "max_tokens": 5, "stream": True, "best_of": 1,
                         "stream_options": {"include_usage": True}, "top_k": 5, "min_p": 0.1}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 4, "presence_penalty": 1,
                         "frequency_penalty": 0.5, "repetition_penalty": 1.1,
                         "stop_token_ids": [98], "bad_words": ["b"], "min_tokens": 1,
                         "prompt_logprobs": 1, "return_token_ids": True}),
    ("/v1/completions", {"prompt": "x", "max_tokens": 8, "structured_outputs": {
        "regex": "[a-c]{1,4}"}}),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 4, "top_p": 0.9, "user": "u"}),
    ("/v1/chat/completions", {"messages": CHAT, "max_completion_tokens": 4, "stream": True,
                              "logprobs": True, "top_logprobs": 2, "n": 2}),
    ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 12, "response_format": {
        "type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}}),
    ("/v1/chat/completions", {"messages": [
        *CHAT, {"role": "assistant", "content": [{"type": "text", "text": "Yes"}]},
        {"role": "user", "content": [{"type": "text", "text": "More."}]}],
        "max_tokens": 3, "response_format": {"type": "json_object"}}),
    ("/v1/chat/completions", {"messages": CHAT, "tools": [TOOL], "tool_choice": "none",
                              "max_tokens": 6}),
    ("/v1/responses", {"input": "Hi", "instructions": "Be short.", "max_output_tokens": 4,
                       "metadata": {"a": "b"}, "truncation": "auto", "top_logprobs": 2,
                       "include": ["message.output_text.logprobs"], "reasoning": {
                           "effort": "low", "summary": "auto"}}),
    ("/v1/responses", {"input": ITEMS[1:4], "max_output_tokens": 4, "stream": True, "store": False,
                       "tools": [TOOL["function"] | {"type": "function"}], "tool_choice": "none",
                       "parallel_tool_calls": False}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 12, "text": {
        "verbosity": "low", "format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}),
    ("/v1/responses/input_tokens", {"input": ITEMS, "tools": [{"type": "custom", "name": "run"}]}),
    ("/v1/chat/completions/render", {"messages": CHAT, "tools": [TOOL]}),
    ("/apply-template", {"messages": CHAT, "add_generation_prompt": False}),
    ("/v1/messages", {"model": "tiny", "messages": CHAT[1:], "max_tokens": 4, "system": "Be short.",
                      "stop_sequences": ["q"], "temperature": 0.5, "top_k": 3}),
    ("/v1/messages", {"model": "tiny", "max_tokens": 6, "stream": True, "tools": [ANTHROPIC_TOOL],
                      "tool_choice": {"type": "none"}, "thinking": {"type": "disabled"},
                      "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
    ("/v1/messages", {"model": "tiny", "max_tokens": 9, "output_config": {"format": {
        "type": "json_schema", "schema": SCHEMA}}, "messages": [
            *CHAT[1:], {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm", "signature": ""},
                {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"city": "x"}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1",
                                          "content": [{"type": "text", "text": "no"}],
                                          "is_error": True}]}]}),
    ("/v1/messages/count_tokens", {"model": "tiny", "messages": CHAT[1:],
                                   "tools": [ANTHROPIC_TOOL]}),
    ("/api/chat", {"model": "tiny", "messages": CHAT, "stream": False, "think": False, "options": {
        "temperature": 0.5, "num_predict": 4, "stop": ["q"], "seed": 3, "num_ctx": 256}}),
    ("/api/chat", {"model": "tiny", "format": SCHEMA, "options": {"num_predict": 12}, "messages": [
        *CHAT, {"role": "assistant", "content": "", "tool_calls": [{"function": {
            "name": "look_up", "arguments": {"city": "x"}}}]},
        {"role": "tool", "content": "y", "tool_name": "look_up"}]}),
    ("/api/generate", {"model": "tiny:latest", "prompt": "Hi", "system": "Be short.",
                       "context": [97, 98], "keep_alive": "5m", "logprobs": True,
                       "top_logprobs": 1, "options": {"num_predict": 4, "top_k": 5}}),
    ("/api/generate", {"model": "tiny", "prompt": "abc", "raw": True, "stream": False,
                       "options": {"num_predict": 3, "repeat_penalty": 1.1}}),
    ("/api/show", {"model": "tiny"}),
    ("/v1/decisions", {"input": "abc", "questions": [
        {"type": "predicate", "instructions": "Good?"},
        {"type": "choice", "instructions": "Which?", "name": "n", "choices": [
            {"value": "x"}, {"value": True, "description": "d"}]},
        {"type": "score", "instructions": "How?", "levels": [{"label": "low"}, {"label": "up"}]}]}),
    ("/tokenize", {"prompt": "abc", "add_special_tokens": True}),
    ("/tokenize", {"messages": CHAT, "add_generation_prompt": True}),
    ("/detokenize", {"tokens": [97, 98, 99]}),
)

_NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, -(2**63), 2**64, 10**40, 0.5, -0.0, 1e308, 1e-320, "", "a",
    "\x00", "é漢🙂", "a" * 5000, "<|im_end|>", "\ufeff", "null", "../../etc/passwd", [], {}, [[]],
    [None], [[[[[[[[]]]]]]]], {"": None}, {"type": "x"}, [1, "a", None, {}],
    {"a": {"b": {"c": []}}}, "{{ 7 * 7 }}", "(a+)+$", ["a"] * 300, {str(i): i for i in range(50)},
)
_FIELDS = ("model", "n", "stream", "max_tokens", "temperature", "messages", "prompt", "tools",
           "tool_choice", "response_format", "stop", "logprobs", "priority", "cache_salt",
           "chat_template", "chat_template_kwargs", "guided_json", "guided_regex",
           "guided_grammar", "structured_outputs", "request_id", "input", "text", "reasoning",
           "include", "previous_response_id", "truncation", "max_output_tokens", "system",
           "thinking", "stop_sequences", "output_config", "options", "format", "think", "context",
           "keep_alive", "raw", "unknown_field", "__class__")
_HEADERS = (b"content-type: text/plain", b"content-type:", b"content-length: 0", b"x: \xff\xfe",
            b"content-length: 99999999999999999999", b"transfer-encoding: chunked", b"expect: x",
            b"authorization: Bearer \xc3\xa9", b"origin: null", b"host:", b"x-request-id: a b",
            b"content-encoding: gzip", b"accept: text/html", b"x-request-id: " + b"i" * 300)


@dataclasses.dataclass(slots=True, frozen=True)
class Attempt:
    """One request. path: what it was meant for. leaves: the client closes without reading.
    damaged: it may be no HTTP, so that the server may close without an answer."""

    path: str
    data: bytes
    leaves: bool
    damaged: bool


def sound_request(pick: random.Random) -> Attempt:
    """A request as a good client sends it."""
    path, body = pick.choice(SOUND)
    return Attempt(path, _http(b"POST", path.encode(), json.dumps(body).encode()), False, False)


def attempt(pick: random.Random) -> Attempt:
    """A random damaged request (sometimes the damage does not matter)."""
    path, body = pick.choice(SOUND)
    body = copy.deepcopy(body)
    for _ in range(pick.choice((0, 1, 1, 1, 2, 3))):
        body = _damaged_json(body, pick)
    payload = json.dumps(body).encode("utf-8", "surrogatepass")
    kind = pick.random()
    leaves = pick.random() < 0.05
    if kind < 0.7:
        return Attempt(path, _http(b"POST", path.encode(), payload), leaves, False)
    if kind < 0.85:
        data = _http(b"POST", path.encode(), _damaged_bytes(payload, pick))
        return Attempt(path, data, leaves, False)
    return Attempt(path, _damaged_http(path.encode(), payload, pick), leaves, True)


def _http(method: bytes, path: bytes, payload: bytes, *headers: bytes) -> bytes:
    lines = [method + b" " + path + b" HTTP/1.1", b"host: x", b"connection: close"]
    given = b"\r\n".join(headers).lower()
    if b"content-type" not in given:
        lines.append(b"content-type: application/json")
    if b"content-length" not in given and b"transfer-encoding" not in given:
        lines.append(b"content-length: %d" % len(payload))
    return b"\r\n".join([*lines, *headers, b"", payload])


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside."""
    found = []
    keys: Any = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        found.append((value, key))
        found += _places(value[key])
    return found


def _damaged_json(body: Any, pick: random.Random) -> Any:
    places = _places(body)
    how = pick.randrange(6)
    if how == 0 or not places:
        return {**body, pick.choice(_FIELDS): copy.deepcopy(pick.choice(_NASTY))}
    container, key = pick.choice(places)
    old = container[key]
    if how == 1:
        del container[key]
    elif how == 2 and isinstance(old, str):
        cut = pick.randrange(len(old) + 1)
        container[key] = old[:cut] + pick.choice(("\ud800", "\x00", "🙂", "\n\n", '"')) + old[cut:]
    elif how == 3 and isinstance(old, (int, float)):
        container[key] = pick.choice((old * -1, old * 1000, old + 0.5, str(old), 10**30, -(10**30)))
    elif how == 4:
        container[key] = [copy.deepcopy(old)] * pick.choice((1, 2, 200))
    else:
        container[key] = copy.deepcopy(pick.choice(_NASTY))
    return body


def _damaged_bytes(payload: bytes, pick: random.Random) -> bytes:
    data = bytearray(payload)
    how = pick.randrange(5)
    if how == 0:
        return bytes(data[: pick.randrange(len(data) + 1)])
    if how == 1:
        for _ in range(pick.choice((1, 3, 10))):
            data[pick.randrange(len(data))] = pick.randrange(256)
    elif how == 2:
        at = pick.randrange(len(data))
        data[at:at] = bytes(pick.randrange(256) for _ in range(pick.randrange(1, 20)))
    elif how == 3:
        return b"[" * pick.choice((1, 100, 20_000)) + payload
    else:
        return pick.choice((b"", b"null", b"[]", b'""', b"{", b"\xff\xfe", b"{}" * 3, b"NaN",
                            b'{"prompt": NaN}', b'{"a":1,"a":2}', payload + b"x", b" " * 1000))
    return bytes(data)


def _damaged_http(path: bytes, payload: bytes, pick: random.Random) -> bytes:
    how = pick.randrange(7)
    if how == 0:
        method = pick.choice((b"GET", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"HEAD", b"FOO"))
        return _http(method, path, payload)
    if how == 1:
        return _http(b"POST", path, payload, *pick.sample(_HEADERS, pick.choice((1, 1, 2))))
    if how == 2:
        wrong = pick.choice((path + b"/", path + b"?x=%zz", b"/" + path, path.upper(), b"/%00",
                             b"/v1/" + b"a" * 3000, b"*", b"http://x" + path, path + b"%2f..",
                             b"/v1/models/" + b"\xc3\xa9"))
        return _http(b"POST", wrong, payload)
    if how == 3:
        whole = _http(b"POST", path, payload)
        return whole[: pick.randrange(1, len(whole))]
    if how == 4:
        whole = bytearray(_http(b"POST", path, payload))
        for _ in range(3):
            whole[pick.randrange(len(whole))] = pick.randrange(256)
        return bytes(whole)
    if how == 5:
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(payload), payload)
        return _http(b"POST", path, pick.choice((chunks, chunks[:-3], b"zz\r\n" + chunks)),
                     b"transfer-encoding: chunked")
    return bytes(pick.randrange(256) for _ in range(pick.randrange(1, 200))) + b"\r\n\r\n"
