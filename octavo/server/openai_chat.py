"""POST /v1/chat/completions: a conversation in, choices out, whole or streamed."""

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.core.sampling_params import SamplingParams
from octavo.engine.outputs import CompletionOutput, RequestOutput
from octavo.server.answer import respond
from octavo.server.body import read_request
from octavo.server.generation import Generation
from octavo.server.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.messages import chat_prompt
from octavo.server.openai_tools import chat_plan, fill_delta, message_of
from octavo.server.params import chat_params, check_priority
from octavo.server.planned import DeltaReader, planned_params
from octavo.server.protocol.requests import ChatRequest
from octavo.server.protocol.responses import (
    ChatChoice,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatResponse,
    CompletionTokensDetails,
    Timings,
    Usage,
)
from octavo.server.sse import DONE
from octavo.server.state import ServerState
from octavo.tools.parser import OutputDelta

_encode = msgspec.json.encode


def routes(state: ServerState) -> list[Route]:
    """The route of this file."""

    async def chat_completions(request: Request) -> Response:
        asked = await read_request(request, state, ChatRequest)
        answer = _ChatCompletion(asked, state)
        prompt = await chat_prompt(asked.messages, asked, state, answer.plan)
        await answer.set_prompt(prompt["prompt"])
        await answer.generation.start(
            [prompt], answer.params, priority=check_priority(asked, state),
            kind="delta" if asked.stream else "final")
        return await respond(answer, request, stream=asked.stream)

    return [Route("/v1/chat/completions", chat_completions, methods=["POST"])]


class _ChatCompletion:
    """One request and the shaping of its answer."""

    def __init__(self, request: ChatRequest, state: ServerState) -> None:
        self._request = request
        self._tokenizer = state.llm.tokenizer
        self._model = state.model_name(request.model)
        self._id = state.response_id("chatcmpl", request.request_id)
        self._created = int(time.time())
        self._fingerprint = state.fingerprint
        self.plan = chat_plan(request, state.formats)
        self.params: SamplingParams = chat_params(request, state)
        self._as_function = request.functions is not None
        self._prompt = ""
        self._num_reasoning_tokens = 0
        self.generation = Generation(state, self._id)
        self._echo = ""
        if request.echo and request.continue_final_message:
            self._echo = _text_of(request.messages[-1]) if request.messages else ""

    async def set_prompt(self, prompt: str) -> None:
        """The rendered prompt: it decides what the output is held to. Raises
        InvalidRequestError."""
        self._prompt = prompt
        self.params = await planned_params(self.params, self.plan, prompt)

    def whole(self, outputs: list[RequestOutput]) -> ChatResponse:
        """The answer in one piece."""
        [output] = outputs
        request = self._request
        response = ChatResponse(
            id=self._id, created=self._created, model=self._model,
            system_fingerprint=self._fingerprint,
            choices=[self._choice(part) for part in output.outputs],
            usage=self._usage())  # behind the choices: they count reasoning
        if request.prompt_logprobs is not None and output.prompt_logprobs is not None:
            response.prompt_logprobs = prompt_logprobs(output.prompt_logprobs)
        if request.return_token_ids:
            response.prompt_token_ids = output.prompt_token_ids
        if request.timings or request.timings_per_token:
            response.timings = self.generation.timings()
        return response

    def _choice(self, part: CompletionOutput) -> ChatChoice:
        assert part.finish_reason is not None
        message, finish_reason = ChatMessage(content=part.text), part.finish_reason
        if not self.plan.is_plain:
            parsed = self.plan.parser(self._prompt).parse(part.text)
            message = message_of(parsed, with_reasoning=self._request.include_reasoning,
                                 as_function=self._as_function)
            finish_reason = self._finish_reason(finish_reason, len(parsed.calls))
            self._count_reasoning(part.token_ids)
        if self._echo:
            message.content = self._echo + (message.content or "")
        return ChatChoice(
            index=part.index, message=message,
            logprobs=self._logprobs(part), finish_reason=finish_reason,
            stop_reason=part.stop_reason, seed=part.seed, token_ids=self._token_ids(part))

    def _finish_reason(self, reason: str, num_calls: int) -> str:
        if not num_calls or reason != "stop":
            return reason
        return "function_call" if self._as_function else "tool_calls"

    def _count_reasoning(self, token_ids: Sequence[int]) -> None:
        self._num_reasoning_tokens += self.plan.num_reasoning_tokens(
            self._tokenizer, self._prompt, token_ids)

    def _usage(self) -> Usage:
        usage = self.generation.usage()
        usage.completion_tokens_details = CompletionTokensDetails(
            reasoning_tokens=self._num_reasoning_tokens)
        return usage

    def _logprobs(self, part: CompletionOutput) -> ChatLogprobs | None:
        if part.logprobs is None:
            return None
        return chat_logprobs(self._tokenizer, part.token_ids, part.logprobs,
                             self._request.top_logprobs or 0, self._request.logprob_token_ids)

    def _token_ids(self, part: CompletionOutput) -> list[int] | UnsetType:
        return part.token_ids if self._request.return_token_ids else UNSET

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        options = self._request.stream_options
        with_usage = options is not None and options.include_usage
        chunk = _ChunkTemplate(self._head(), with_usage=with_usage)
        try:
            # at once, so that clients and proxies see that the request was accepted
            content = None if self.plan.is_forced and not self._echo else self._echo
            yield b"".join(
                chunk.choice(ChatChunkChoice(
                    index=i, delta=ChatDelta(role="assistant", content=content)))
                for i in range(self._request.n))
            shapers = {} if self.plan.is_plain else {
                i: DeltaReader(self.plan.parser(self._prompt)) for i in range(self._request.n)}
            async for _, output in self.generation.outputs():
                self.generation.count(0, output)
                chunks = []
                for part in output.outputs:
                    is_last = output.finished and part is output.outputs[-1]
                    if self._tells_timings(is_last and not with_usage):
                        chunk.timings = self.generation.timings()
                    chunks.append(self._news(chunk, part, shapers.get(part.index)))
                data = b"".join(chunks)
                if data:
                    yield data
            if with_usage and self._tells_timings(True):
                chunk.timings = self.generation.timings()
            yield (chunk.usage(self._usage()) if with_usage else b"") + DONE
        finally:
            await self.generation.close()

    def _tells_timings(self, is_last: bool) -> bool:
        """Whether a chunk has them. is_last: it is the last that could."""
        return self._request.timings_per_token or (self._request.timings and is_last)

    def _head(self) -> bytes:
        """The start of every chunk, up to the comma before its choices."""
        whole = _encode({
            "id": self._id, "object": "chat.completion.chunk", "created": self._created,
            "model": self._model, "system_fingerprint": self._fingerprint,
        })
        return whole.removesuffix(b"}")

    def _news(self, chunk: "_ChunkTemplate", part: CompletionOutput,
              shaper: DeltaReader | None) -> bytes:
        """The chunk of a delta; nothing if its text is held back."""
        is_plain = (part.finish_reason is None and part.logprobs is None
                    and not self._request.return_token_ids)
        if shaper is None:
            news = OutputDelta(content=part.text)
        else:
            news = shaper.take(part)
        if is_plain and not (news.reasoning or news.calls):
            return chunk.text(part.index, news.content) if news.content else b""
        choice = ChatChunkChoice(
            index=part.index, delta=ChatDelta(), logprobs=self._logprobs(part),
            finish_reason=part.finish_reason, token_ids=self._token_ids(part))
        fill_delta(choice.delta, news, with_reasoning=self._request.include_reasoning,
                   as_function=self._as_function)
        if part.finish_reason is not None:
            choice.stop_reason, choice.seed = part.stop_reason, part.seed
            if shaper is not None:
                choice.finish_reason = self._finish_reason(
                    part.finish_reason, shaper.parser.num_calls)
                self._count_reasoning(shaper.token_ids)
        elif is_plain and choice.delta == _NOTHING:
            return b""
        return chunk.choice(choice)


_NOTHING = ChatDelta()


class _ChunkTemplate:
    """Chunks of one stream from ready-made bytes: all that differs is encoded, nothing else.

    timings: what the next chunks end with, if anything."""

    def __init__(self, head: bytes, *, with_usage: bool) -> None:
        self._head = b"data: " + head
        self._with_usage = with_usage
        self.timings = None

    @property
    def timings(self) -> Timings | None:
        return self._timings

    @timings.setter
    def timings(self, timings: Timings | None) -> None:
        self._timings = timings
        more = b"" if timings is None else b',"timings":' + _encode(timings)
        self._end = more + b"}\n\n"
        self._tail = (b',"usage":null' if self._with_usage else b"") + self._end
        self._text_tail = b'},"logprobs":null,"finish_reason":null}]' + self._tail

    def text(self, index: int, text: str) -> bytes:
        """The common chunk: a piece of text of one choice."""
        return b"".join((self._head, b',"choices":[{"index":%d,"delta":{"content":' % index,
                         _encode(text), self._text_tail))

    def choice(self, choice: ChatChunkChoice) -> bytes:
        """A chunk of any one choice."""
        return b"".join((self._head, b',"choices":[', _encode(choice), b"]", self._tail))

    def usage(self, usage: msgspec.Struct) -> bytes:
        """The chunk behind the last choice."""
        return b"".join((self._head, b',"choices":[],"usage":', _encode(usage), self._end))


def _text_of(message: Any) -> str:
    """The text of a message the template has rendered: it is a string or a list of text parts."""
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):
        parts = [p if isinstance(p, str) else str(p.get("text", "")) for p in content
                 if isinstance(p, (str, dict))]
        return "".join(parts)
    return content if isinstance(content, str) else ""
