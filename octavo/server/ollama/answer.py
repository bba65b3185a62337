"""The answer of /api/chat and /api/generate: one JSON object, or a line for each piece. Knows no
request fields.
"""

import dataclasses
import datetime
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec import UNSET

from octavo.engine.outputs import CompletionOutput, RequestOutput
from octavo.server.error_shapes import ollama_error
from octavo.server.generation import Generation
from octavo.server.logprobs import chat_logprobs
from octavo.server.planned import DeltaReader
from octavo.server.protocol.ollama import (
    OllamaAnswer,
    OllamaFunction,
    OllamaMessage,
    OllamaToolCall,
)
from octavo.server.sse import StreamForm
from octavo.server.state import ServerState
from octavo.tools.parser import OutputDelta, ParsedOutput, ToolCall
from octavo.tools.plan import AnswerPlan

# A line must be JSON, and an answer object is no ping: clients would show it.
STREAM = StreamForm("application/x-ndjson", b"",
                    lambda error, request_id: ollama_error(error) + b"\n")


@dataclasses.dataclass(slots=True, frozen=True)
class AnswerShape:
    """Attributes:
        model: the name as asked.
        is_chat: a message, not a response.
        with_thinking: reasoning is shown.
        with_context: the token ids of prompt and answer come with the end.
        num_logprobs: alternatives a token; None for no logprobs.
    """

    model: str
    is_chat: bool
    with_thinking: bool = True
    with_context: bool = False
    num_logprobs: int | None = None


class OllamaAnswerStream:
    """One request's answer. plan: None where the output is text as it is. prompt: the text the
    output continues."""

    def __init__(self, shape: AnswerShape, state: ServerState, plan: AnswerPlan, prompt: str
                 ) -> None:
        self._shape = shape
        self._tokenizer = state.llm.tokenizer
        self._plan = plan
        self._prompt = prompt
        self.generation = Generation(state, state.response_id("ollama", None))
        self._started = time.monotonic()
        self._first_token: float | None = None
        self._num_calls = 0

    def whole(self, outputs: list[RequestOutput]) -> OllamaAnswer:
        """The answer in one piece."""
        [output] = outputs
        part = output.outputs[0]
        if output.metrics is not None:
            self._first_token = output.metrics.first_token_time
        parsed = ParsedOutput(content=part.text)
        if not self._plan.is_plain:
            parsed = self._plan.parser(self._prompt).parse(part.text)
        answer = self._piece(parsed.content, parsed.reasoning, parsed.calls, part)
        return self._end(answer, part.finish_reason, output.prompt_token_ids, part.token_ids)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as lines of JSON."""
        reader = DeltaReader(self._plan.parser(self._prompt))
        calls, token_ids = ParsedOutput(), []
        prompt_ids: list[int] = []
        reason: str | None = None
        try:
            async for _, output in self.generation.outputs():
                self._first_token = self._first_token or time.monotonic()
                self.generation.count(0, output)
                prompt_ids = output.prompt_token_ids
                for part in output.outputs:
                    token_ids += part.token_ids
                    reason = part.finish_reason
                    news = reader.take(part)
                    calls.add(OutputDelta(calls=news.calls))
                    # a call comes when it is complete: when another has begun, or all has ended
                    complete = calls.calls[self._num_calls:None if reason else -1]
                    answer = self._piece(news.content, news.reasoning, complete, part)
                    if self._says_something(answer):
                        yield msgspec.json.encode(answer) + b"\n"
            yield msgspec.json.encode(self._end(
                self._piece("", "", [], None), reason, prompt_ids, token_ids)) + b"\n"
        finally:
            await self.generation.close()

    def _piece(self, content: str, reasoning: str, calls: list[ToolCall],
               part: CompletionOutput | None) -> OllamaAnswer:
        answer = OllamaAnswer(model=self._shape.model, created_at=timestamp())
        thinking = reasoning if reasoning and self._shape.with_thinking else UNSET
        if self._shape.is_chat:
            answer.message = OllamaMessage(content=content, thinking=thinking)
            made = [call for call in map(self._call, calls) if call is not None]
            if made:
                answer.message.tool_calls = made
        else:
            answer.response, answer.thinking = content, thinking
        if part is not None and part.logprobs is not None and self._shape.num_logprobs is not None:
            answer.logprobs = chat_logprobs(self._tokenizer, part.token_ids, part.logprobs,
                                            self._shape.num_logprobs).content
        return answer

    def _call(self, call: ToolCall) -> OllamaToolCall | None:
        """None for one that was cut: nobody could run it, and this API cannot say that it is
        incomplete."""
        index = self._num_calls
        self._num_calls += 1
        try:
            arguments: Any = json.loads(call.arguments or "{}")
        except ValueError:
            return None
        if not isinstance(arguments, dict):
            return None
        return OllamaToolCall(id=call.call_id, function=OllamaFunction(
            index=index, name=call.name, arguments=arguments))

    def _says_something(self, answer: OllamaAnswer) -> bool:
        if answer.logprobs is not UNSET:
            return True
        said: OllamaMessage | OllamaAnswer = answer
        if isinstance(answer.message, OllamaMessage):
            said = answer.message
            if said.content or said.tool_calls is not UNSET:
                return True
        return bool(answer.response) or said.thinking is not UNSET

    def _end(self, answer: OllamaAnswer, reason: str | None, prompt_ids: list[int],
             token_ids: list[int]) -> OllamaAnswer:
        """Adds what comes with the end."""
        now = time.monotonic()
        first = now if self._first_token is None else self._first_token
        answer.done, answer.done_reason = True, reason or "stop"
        if self._shape.with_context:
            answer.context = [*prompt_ids, *token_ids]
        answer.total_duration = _nanoseconds(now - self._started)
        answer.load_duration = 0
        answer.prompt_eval_count = self.generation.num_prompt_tokens
        answer.prompt_eval_duration = _nanoseconds(first - self._started)
        answer.eval_count = self.generation.num_completion_tokens
        answer.eval_duration = _nanoseconds(now - first)
        return answer


def timestamp() -> str:
    """The time, in RFC 3339."""
    now = datetime.datetime.now(datetime.UTC)
    return now.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e9))
