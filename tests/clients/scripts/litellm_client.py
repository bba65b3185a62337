"""LiteLLM's two prefixes for servers like this one. Arguments: base URL, model. Prints JSON."""

import asyncio
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city.", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Oslo", "Lima"]}},
        "required": ["city"], "additionalProperties": False}}}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}},
          "required": ["city"], "additionalProperties": False}


def refusal(call) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def flows(prefix: str, base_url: str, model: str) -> dict:
    def ask(**more):
        fields = {"model": f"{prefix}/{model}", "api_base": base_url + "/v1", "api_key": "x",
                  "messages": QUESTION, "temperature": 0, "max_tokens": 24, "num_retries": 0}
        return litellm.completion(**(fields | more))

    whole = ask()
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    usage = [c.usage for c in chunks if getattr(c, "usage", None)]
    call = ask(tools=TOOLS, tool_choice="required", max_tokens=64).choices[0]
    formed = ask(max_tokens=60, response_format={"type": "json_schema", "json_schema": {
        "name": "answer", "strict": True, "schema": SCHEMA}})
    later = asyncio.run(litellm.acompletion(
        model=f"{prefix}/{model}", api_base=base_url + "/v1", api_key="x", messages=QUESTION,
        temperature=0, max_tokens=24))
    return {
        "text": whole.choices[0].message.content,
        "finish_reason": whole.choices[0].finish_reason,
        "completion_tokens": whole.usage.completion_tokens,
        "streamed": "".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
        "streamed_tokens": usage[-1].completion_tokens,
        "asynchronous": later.choices[0].message.content,
        "tool": call.message.tool_calls[0].function.name,
        "arguments": json.loads(call.message.tool_calls[0].function.arguments),
        "tool_finish_reason": call.finish_reason,
        "formed": json.loads(formed.choices[0].message.content),
        "bad_value": refusal(lambda: ask(temperature=-1)),
        "bad_model": refusal(lambda: ask(model=f"{prefix}/other")),
        "too_long": refusal(lambda: ask(messages=[
            {"role": "user", "content": "word " * 9000}])),
    }


print(json.dumps({p: flows(p, *sys.argv[1:3]) for p in ("hosted_vllm", "openai")}))
