"""langchain-openai's ChatOpenAI. Arguments: base URL, model. Prints JSON."""

import asyncio
import json
import sys
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

base_url, model = sys.argv[1:3]
QUESTION = "What is the capital of France?"


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    continent: Literal["Europe", "Asia"]
    millions: int = Field(ge=0, le=40)


@tool
def get_weather(city: Literal["Oslo", "Lima"]) -> str:
    """The weather of a city."""
    return f"4 C in {city}"


chat = ChatOpenAI(model=model, base_url=base_url + "/v1", api_key="x", temperature=0,
                  max_tokens=64, max_retries=0)
whole = chat.invoke(QUESTION)
chunks = list(chat.stream(QUESTION, stream_usage=True))
total = chunks[0]
for chunk in chunks[1:]:
    total += chunk
bound = chat.bind_tools([get_weather], tool_choice="any")
called = bound.invoke("How is the weather in Oslo?")
call = called.tool_calls[0]
history = [HumanMessage("How is the weather in Oslo?"), called,
           ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
streamed_call = None
for chunk in bound.stream("How is the weather in Oslo?"):
    streamed_call = chunk if streamed_call is None else streamed_call + chunk
structured = {method: chat.with_structured_output(City, method=method).invoke(
    "Describe Paris.").model_dump() for method in ("json_schema", "function_calling")}
try:
    too_long = str(chat.invoke("word " * 9000).content)
except Exception as error:
    too_long = type(error).__name__

print(json.dumps({
    "too_long": too_long,
    "text": whole.content, "finish_reason": whole.response_metadata["finish_reason"],
    "output_tokens": whole.usage_metadata["output_tokens"],
    "streamed": total.content, "streamed_tokens": total.usage_metadata["output_tokens"],
    "num_chunks": len(chunks),
    "batch": [m.content for m in chat.batch([QUESTION, QUESTION])],
    "asynchronous": asyncio.run(chat.ainvoke(QUESTION)).content,
    "tool": call["name"], "arguments": call["args"],
    "streamed_call": [streamed_call.tool_calls[0]["name"], streamed_call.tool_calls[0]["args"]],
    "after_the_tool": chat.invoke(history).content,
    "structured": structured,
}))
