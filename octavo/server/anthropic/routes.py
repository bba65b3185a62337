"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages API."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.engine.outputs import CompletionOutput, RequestOutput
from octavo.server.answer import respond
from octavo.server.anthropic.blocks import BlockStream, blocks_of, event_bytes, stop_of
from octavo.server.anthropic.conversation import chat_messages, continues
from octavo.server.anthropic.options import (
    FIELD_NAMES,
    chat_request,
    message_params,
    plan_of,
    refuse_elsewhere,
    thinking_of,
)
from octavo.server.body import read_request
from octavo.server.error_shapes import anthropic_error
from octavo.server.errors import JSON
from octavo.server.generation import Generation
from octavo.server.messages import chat_prompt
from octavo.server.params import check_priority
from octavo.server.planned import DeltaReader, fields_named, planned_params
from octavo.server.protocol.anthropic import (
    Event,
    Message,
    MessageDelta,
    MessagesRequest,
    MessageStart,
    MessageStop,
    MessagesUsage,
    Ping,
    StopDelta,
    TokenCount,
)
from octavo.server.protocol.requests import ChatRequest
from octavo.server.sse import StreamForm
from octavo.server.state import ServerState
from octavo.tools.parser import ParsedOutput

_STREAM = StreamForm(
    "text/event-stream; charset=utf-8", event_bytes(Ping()),
    lambda error, request_id: b"event: error\ndata: %s\n\n" % anthropic_error(error, request_id))


def routes(state: ServerState) -> list[Route]:
    """The routes of this file."""

    async def messages(request: Request) -> Response:
        asked = await read_request(request, state, MessagesRequest)
        with fields_named(FIELD_NAMES):
            answer = _MessageAnswer(asked, state)
            await answer.start()
        return await respond(answer, request, stream=asked.stream, form=_STREAM)

    async def count_tokens(request: Request) -> Response:
        asked = await read_request(request, state, MessagesRequest)
        state.model_name(asked.model)
        with fields_named(FIELD_NAMES):
            refuse_elsewhere(asked)
            prompt = await chat_prompt(*_conversation(asked), state, plan_of(asked, state.formats))
        count = TokenCount(input_tokens=len(prompt["prompt_token_ids"]))
        return Response(msgspec.json.encode(count), media_type=JSON)

    return [
        Route("/v1/messages", messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
    ]


def _conversation(asked: MessagesRequest) -> tuple[list[Any], ChatRequest]:
    """(messages, request) in the chat completions shape."""
    messages: list[Any] = chat_messages(asked.messages, asked.system)
    return messages, chat_request(asked, messages, continues=continues(messages))


class _MessageAnswer:
    """One request and the shaping of its answer."""

    def __init__(self, asked: MessagesRequest, state: ServerState) -> None:
        self._asked = asked
        self._state = state
        self._model = state.model_name(asked.model)
        self._id = state.response_id("msg", asked.request_id)
        refuse_elsewhere(asked)
        self._plan = plan_of(asked, state.formats)
        self._with_thinking = thinking_of(asked.thinking).shown
        self._messages, self._request = _conversation(asked)
        self._params = message_params(asked, self._request, state)
        self._prompt = ""
        self._num_prompt_tokens = 0
        self.generation = Generation(state, self._id)

    async def start(self) -> None:
        """Raises InvalidRequestError and what Generation.start raises."""
        prompt = await chat_prompt(self._messages, self._request, self._state, self._plan)
        self._prompt = prompt["prompt"]
        self._num_prompt_tokens = len(prompt["prompt_token_ids"])
        params = await planned_params(self._params, self._plan, self._prompt)
        # max_tokens is required here, and clients send more than small models have room for
        await self.generation.start(
            [prompt], params, priority=check_priority(self._asked, self._state),
            kind="delta" if self._asked.stream else "final", strict_max_tokens=False)

    def whole(self, outputs: list[RequestOutput]) -> Message:
        """The answer in one piece."""
        part: CompletionOutput = outputs[0].outputs[0]
        parsed = ParsedOutput(content=part.text)
        if not self._plan.is_plain:
            parsed = self._plan.parser(self._prompt).parse(part.text)
        stop = stop_of(part, len(parsed.calls))
        return Message(
            id=self._id, model=self._model,
            content=blocks_of(parsed, with_thinking=self._with_thinking),
            stop_reason=stop.stop_reason, stop_sequence=stop.stop_sequence, usage=self._usage())

    def _usage(self) -> MessagesUsage:
        counted = self.generation
        return MessagesUsage(
            input_tokens=counted.num_prompt_tokens - counted.num_cached_tokens,
            cache_read_input_tokens=counted.num_cached_tokens,
            output_tokens=counted.num_completion_tokens)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        reader = DeltaReader(self._plan.parser(self._prompt))
        blocks = BlockStream(with_thinking=self._with_thinking)
        stop = StopDelta(stop_reason=None, stop_sequence=None)
        try:
            # at once, so that clients and proxies see that the request was accepted
            yield _joined([MessageStart(message=Message(
                id=self._id, model=self._model, content=[],
                usage=MessagesUsage(input_tokens=self._num_prompt_tokens, output_tokens=0))),
                Ping()])
            async for _, output in self.generation.outputs():
                self.generation.count(0, output)
                events: list[Event] = []
                for part in output.outputs:
                    events += blocks.news(reader.take(part))
                    if part.finish_reason is not None:
                        stop = stop_of(part, reader.parser.num_calls)
                if events:
                    yield _joined(events)
            yield _joined([*blocks.end(), MessageDelta(delta=stop, usage=self._usage()),
                           MessageStop()])
        finally:
            await self.generation.close()


def _joined(events: list[Event]) -> bytes:
    return b"".join(map(event_bytes, events))
