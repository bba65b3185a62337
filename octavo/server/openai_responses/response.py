"""One response: the shaping of its answer, whole or as events, and what is kept of it."""

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncGenerator

import msgspec
from msgspec import UNSET

from octavo.core.sampling_params import SamplingParams
from octavo.engine.outputs import CompletionOutput, RequestOutput
from octavo.errors import InvalidRequestError, OctavoError
from octavo.server.errors import internal_error
from octavo.server.generation import ClientGoneError, Generation
from octavo.server.openai_responses.conversation import Conversation
from octavo.server.openai_responses.fields import (
    echoed_reasoning,
    echoed_text,
    echoed_tools,
    num_logprobs,
    plan_of,
    refuse_create,
    text_format,
)
from octavo.server.openai_responses.output import OutputItems
from octavo.server.openai_responses.reader import OutputReader
from octavo.server.openai_responses.store import ResponseStore, StoredResponse
from octavo.server.params import response_params
from octavo.server.protocol.response_events import (
    Completed,
    Created,
    ErrorEvent,
    Event,
    Failed,
    Incomplete,
    InProgress,
)
from octavo.server.protocol.response_object import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    ResponseError,
    ResponseObject,
    ResponseUsage,
)
from octavo.server.protocol.response_request import ResponseRequest
from octavo.server.state import ServerState

logger = logging.getLogger("octavo.server")

_encode = msgspec.json.encode


class ResponseAnswer:
    """An Answer (see server/answer.py). Raises InvalidRequestError at construction."""

    def __init__(self, request: ResponseRequest, state: ServerState, store: ResponseStore,
                 conversation: Conversation) -> None:
        refuse_create(request)
        self._request = request
        self._tokenizer = state.llm.tokenizer
        self._store = store
        self._conversation = conversation
        model = state.model_name(request.model)
        response_id = state.response_id("resp", request.request_id).replace("-", "_", 1)
        self.plan = plan_of(request, state.formats)
        self._num_top = num_logprobs(request)
        self.params: SamplingParams = response_params(
            request, state, num_logprobs=self._num_top, wanted=text_format(request.text))
        self.generation = Generation(state, response_id)
        self._prompt = ""
        self._object = self._begun(response_id, model)

    def _begun(self, response_id: str, model: str) -> ResponseObject:
        """The response before there is any output."""
        request, params = self._request, self.params
        return ResponseObject(
            id=response_id, created_at=int(time.time()), model=model,
            instructions=request.instructions, max_output_tokens=request.max_output_tokens,
            max_tool_calls=request.max_tool_calls,
            parallel_tool_calls=request.parallel_tool_calls is not False,
            previous_response_id=request.previous_response_id,
            prompt_cache_key=request.prompt_cache_key,
            prompt_cache_retention=request.prompt_cache_retention,
            reasoning=echoed_reasoning(request.reasoning),
            safety_identifier=request.safety_identifier, store=request.store,
            temperature=params.temperature, text=echoed_text(request.text),
            tool_choice="auto" if request.tool_choice is None else request.tool_choice,
            tools=echoed_tools(self.plan.given), top_logprobs=self._num_top or 0,
            top_p=params.top_p, truncation=request.truncation or "disabled",
            user=UNSET if request.user is None else request.user, metadata=request.metadata or {})

    async def set_prompt(self, prompt: str) -> None:
        """The rendered prompt: it decides what the output is held to. Raises
        InvalidRequestError."""
        self._prompt = prompt
        if self.plan.is_plain:
            return
        grammar = await asyncio.to_thread(
            self.plan.structured_outputs, prompt, self.params.structured_outputs)
        self.params = msgspec.structs.replace(
            self.params, structured_outputs=grammar,
            skip_special_tokens=self.params.skip_special_tokens
            and not self.plan.needs_special_tokens)

    def _reader(self, items: OutputItems) -> OutputReader:
        return OutputReader(
            self.plan, self._prompt, items, tokenizer=self._tokenizer,
            num_top=self._num_top or 0, skip_special_tokens=self.params.skip_special_tokens)

    def whole(self, outputs: list[RequestOutput]) -> ResponseObject:
        """The answer in one piece."""
        [output] = outputs
        [part] = output.outputs
        items = OutputItems(with_reasoning=self._request.include_reasoning)
        reader = self._reader(items)
        reader.take(part)
        return self._ended(part, items, reader)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        writer = _EventWriter()
        items = OutputItems(writer.add, with_reasoning=self._request.include_reasoning)
        try:
            writer.add(Created(response=self._object))
            writer.add(InProgress(response=self._object))
            yield writer.take()
            reader = self._reader(items)
            async for _, output in self.generation.outputs():
                self.generation.count(0, output)
                [part] = output.outputs
                reader.take(part)
                if output.finished:
                    ended = self._ended(part, items, reader)
                    kind = Incomplete if ended.status == "incomplete" else Completed
                    writer.add(kind(response=ended))
                if data := writer.take():
                    yield data
        except ClientGoneError:
            raise
        except OctavoError as error:
            yield writer.take() + self._failure(error, items, writer)
        except Exception:
            logger.exception("a response failed")
            yield writer.take() + self._failure(internal_error(), items, writer)
        finally:
            await self.generation.close()

    def _ended(self, part: CompletionOutput, items: OutputItems,
               reader: OutputReader) -> ResponseObject:
        """The complete response, kept if that was asked for."""
        is_cut = part.finish_reason == "length"
        usage = self.generation.usage()
        ended = msgspec.structs.replace(
            self._object, status="incomplete" if is_cut else "completed", output=items.items,
            completed_at=None if is_cut else int(time.time()),
            incomplete_details=IncompleteDetails(reason="max_output_tokens") if is_cut else None,
            seed=part.seed,
            usage=ResponseUsage(
                input_tokens=usage.prompt_tokens,
                input_tokens_details=InputTokensDetails(
                    cached_tokens=usage.prompt_tokens_details.cached_tokens),
                output_tokens=usage.completion_tokens,
                output_tokens_details=OutputTokensDetails(
                    reasoning_tokens=reader.num_reasoning_tokens),
                total_tokens=usage.total_tokens))
        if ended.store:
            self._keep(ended)
        return ended

    def _keep(self, ended: ResponseObject) -> None:
        stored = StoredResponse(body=_encode(ended), output=_encode(ended.output),
                                conversation=_encode(self._conversation.items),
                                item_ids=tuple(item.id for item in ended.output))
        if self._store.takes(stored.num_bytes):
            self._store.put(ended.id, stored)
        else:
            ended.store = False

    def _failure(self, error: OctavoError, items: OutputItems, writer: "_EventWriter") -> bytes:
        """The status line is out: what goes wrong now can only be told as events."""
        writer.add(ErrorEvent(code=error.code or error.error_type, message=error.message,
                              param=error.param))
        writer.add(Failed(response=msgspec.structs.replace(
            self._object, status="failed", output=items.items, store=False,
            error=ResponseError(code="server_error", message=error.message))))
        return writer.take()


class _EventWriter:
    """Events -> bytes, each as it is when it is added."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._written: list[bytes] = []

    def add(self, event: Event) -> None:
        event.sequence_number = next(self._numbers)
        tag = str(type(event).__struct_config__.tag).encode()
        self._written += (b"event: ", tag, b"\ndata: ", _encode(event), b"\n\n")

    def take(self) -> bytes:
        """What was added since the last time."""
        data = b"".join(self._written)
        self._written.clear()
        return data


def check_id_is_free(request: ResponseRequest, store: ResponseStore) -> None:
    """A request_id must not take the place of a response that is kept. Raises
    InvalidRequestError."""
    if request.request_id is not None and f"resp_{request.request_id}" in store:
        raise InvalidRequestError("request_id is that of a response that is kept here: give each "
                                  "request its own", param="request_id")
