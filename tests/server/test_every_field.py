"""Every field that a route knows, with a sound value: taken, or refused by its name.

A field without an entry here fails, so that nothing comes into the API untried.
"""

from typing import Any

import pytest

from octavo.server.openapi.operations import OPERATIONS
from tests.server.process import ServerProcess

USER = [{"role": "user", "content": "Hi"}]
FUNCTION = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
FLAT_TOOL = {"type": "function", **FUNCTION}
USE_TOOL = {"name": "look_up", "input_schema": {"type": "object"}}
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "max_tokens": 4},
    "/v1/completions": {"prompt": "Hello", "max_tokens": 4},
    "/v1/decisions": {"input": USER, "questions": [
        {"type": "predicate", "name": "kind", "instructions": "The letter is kind."}]},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 16},
    "/v1/responses/input_tokens": {"input": "Hello"},
    "/v1/messages": {"model": "smollm2-135m", "messages": USER, "max_tokens": 4},
    "/api/show": {"model": "smollm2-135m"},
    "/api/chat": {"model": "smollm2-135m", "messages": USER, "options": {"num_predict": 4}},
    "/api/generate": {"model": "smollm2-135m", "prompt": "Hello", "options": {"num_predict": 4}},
    "/tokenize": {"prompt": "Hello"},
    "/detokenize": {"tokens": [1, 2]},
}
SOUND: dict[str, Any] = {
    "model": "smollm2-135m", "stream": True, "n": 2, "temperature": 0.5, "top_p": 0.9,
    "max_tokens": 8, "stop": ["\n\n"], "seed": 3, "presence_penalty": 0.5,
    "frequency_penalty": 0.5, "logit_bias": {"5": -3}, "top_k": 5, "min_p": 0.1,
    "repetition_penalty": 1.1, "min_tokens": 2, "stop_token_ids": [7],
    "include_stop_str_in_output": True, "ignore_eos": True, "skip_special_tokens": False,
    "spaces_between_special_tokens": False, "allowed_token_ids": [65, 66],
    "bad_words": ["bad"], "truncate_prompt_tokens": 8, "prompt_logprobs": 1,
    "logprob_token_ids": [65, 66], "priority": 0, "cache_salt": "salt", "request_id": "mine",
    "return_token_ids": True, "user": "someone", "metadata": {"a": "b"}, "store": False,
    "service_tier": "auto", "response_format": {"type": "json_object"},
    "structured_outputs": {"choice": ["yes", "no"]}, "guided_json": {"type": "object"},
    "guided_regex": "[a-z]{3}", "guided_choice": ["yes", "no"], "guided_grammar": 'start: "a"',
    "messages": USER, "logprobs": True, "max_completion_tokens": 8, "echo": True,
    "add_generation_prompt": True, "chat_template_kwargs": {"custom": 1}, "tools": [CHAT_TOOL],
    "parallel_tool_calls": False, "functions": [FUNCTION], "reasoning_effort": "low",
    "include_reasoning": True, "modalities": ["text"],
    "prediction": {"type": "content", "content": "Hello"}, "prompt_cache_key": "key",
    "prompt_cache_options": {"mode": "implicit"}, "prompt_cache_retention": "24h",
    "safety_identifier": "s", "verbosity": "low", "prompt": "Hello", "best_of": 2,
    "add_special_tokens": True, "input": "Hello", "instructions": "Be brief.",
    "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"},
    "truncation": "auto", "max_output_tokens": 20, "max_tool_calls": 2, "include": [],
    "system": "Be brief.", "stop_sequences": ["\n\n"], "options": {"seed": 1},
    "keep_alive": "5m", "raw": True, "context": [1, 2], "verbose": True, "name": "smollm2-135m",
    "with_pieces": True, "return_token_strs": True, "content": "Hello", "tokens": [1, 2],
    "thinking": {"type": "disabled"}, "think": False, "betas": ["one-2025-01-01"],
    "output_config": {"effort": "low"}, "cache_control": {"type": "ephemeral"}, "speed": "standard",
    "inference_geo": "us", "user_profile_id": "u", "workspace_id": "w", "diagnostics": {},
    "output_format": {"type": "json_schema", "schema": {"type": "object"}},
    "audio": {"voice": "alloy", "format": "mp3"}, "personality": "friendly", "template": "x",
    "context_management": {"edits": []},
    "timings": True, "timings_per_token": True,
    "truncate": True, "shift": True, "format": "json", "questions": [
        {"type": "predicate", "name": "kind", "instructions": "The letter is kind."}],
}
# Where a route has another type for a name, or a field needs another beside it.
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
ASSISTANT = [*USER, {"role": "assistant", "content": "Hel"}]
OTHERS: dict[tuple[str, str], dict[str, Any]] = {
    ("/v1/chat/completions", "stream_options"): STREAM,
    ("/v1/completions", "stream_options"): STREAM,
    ("/v1/responses", "stream_options"):
        {"stream": True, "stream_options": {"include_obfuscation": False}},
    ("/v1/messages", "stream_options"): STREAM,
    ("/v1/chat/completions", "top_logprobs"): {"logprobs": True, "top_logprobs": 2},
    ("/v1/chat/completions", "tool_choice"): {"tools": [CHAT_TOOL], "tool_choice": "auto"},
    ("/v1/chat/completions", "function_call"): {"functions": [FUNCTION], "function_call": "auto"},
    ("/v1/chat/completions", "continue_final_message"): {
        "messages": ASSISTANT, "continue_final_message": True, "add_generation_prompt": False},
    ("/v1/chat/completions", "documents"): {"documents": []},
    ("/v1/completions", "logprobs"): {"logprobs": 2},
    ("/v1/responses", "tools"): {"tools": [FLAT_TOOL]},
    ("/v1/responses", "tool_choice"): {"tools": [FLAT_TOOL], "tool_choice": "auto"},
    ("/v1/responses", "top_logprobs"): {
        "top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    ("/v1/responses/input_tokens", "tools"): {"tools": [FLAT_TOOL]},
    ("/v1/responses/input_tokens", "tool_choice"): {"tools": [FLAT_TOOL], "tool_choice": "auto"},
    ("/v1/messages", "tools"): {"tools": [USE_TOOL]},
    ("/v1/messages", "tool_choice"): {"tools": [USE_TOOL], "tool_choice": {"type": "auto"}},
    ("/v1/messages", "metadata"): {"metadata": {"user_id": "someone"}},
    ("/api/chat", "top_logprobs"): {"logprobs": True, "top_logprobs": 2},
    ("/api/generate", "top_logprobs"): {"logprobs": True, "top_logprobs": 2},
    ("/tokenize", "content"): {"prompt": None, "content": "Hello"},
    ("/tokenize", "messages"): {"prompt": None, "messages": USER},
    ("/tokenize", "tools"): {"prompt": None, "messages": USER, "tools": [CHAT_TOOL]},
    ("/tokenize", "continue_final_message"): {
        "prompt": None, "messages": ASSISTANT, "continue_final_message": True,
        "add_generation_prompt": False},
}
# Known to be refused with a value that elsewhere is sound.
REFUSED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"chat_template": "x"},
    "/v1/completions": {"suffix": "end"},
    "/v1/responses": {
        "n": 2, "max_tokens": 8, "max_completion_tokens": 8, "prompt_logprobs": 1,
        "return_token_ids": True, "response_format": {"type": "json_object"},
        "previous_response_id": "resp_none", "conversation": "conv_1", "prompt": {"id": "pmpt_1"},
        "context_management": [{"type": "compaction"}], "chat_template": "x", "background": True,
        "moderation": {"model": "m"}},
    "/v1/responses/input_tokens": {
        "previous_response_id": "resp_none", "conversation": "conv_1", "prompt": {"id": "pmpt_1"},
        "context_management": [{"type": "compaction"}], "chat_template": "x"},
    "/v1/messages": {
        "n": 2, "prompt_logprobs": 1, "return_token_ids": True, "container": "c",
        "mcp_servers": [{"type": "url", "name": "m", "url": "http://127.0.0.1"}]},
    "/api/generate": {"suffix": "end", "template": "x", "images": ["aaaa"], "width": 8,
                      "height": 8, "steps": 2},
}
FIELDS = [(path, field) for path in BASES for operation in OPERATIONS
          if operation.path == path and operation.method == "POST" and operation.request
          for field in operation.request.__struct_fields__]


@pytest.mark.parametrize(("path", "field"), FIELDS)
def test_field(real_server: ServerProcess, path: str, field: str) -> None:
    refused = REFUSED.get(path, {})
    if field in refused:
        answer = real_server.client.post(path, BASES[path] | {field: refused[field]})
        assert answer.status in (400, 404)
        assert field in answer.text
        return
    added = OTHERS.get((path, field)) or {field: SOUND[field]}
    answer = real_server.client.post(path, BASES[path] | added)
    assert answer.status == 200, answer.text
