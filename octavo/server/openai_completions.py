"""POST /v1/completions: prompts in, choices out, whole or streamed."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.core.sampling_params import SamplingParams
from octavo.engine.outputs import CompletionOutput, RequestOutput
from octavo.errors import InvalidRequestError
from octavo.server.answer import respond
from octavo.server.body import read_request
from octavo.server.generation import Generation
from octavo.server.logprobs import CompletionLogprobWriter, prompt_logprobs
from octavo.server.params import check_priority, completion_params, ranks_samples
from octavo.server.protocol.decode import whole_numbers
from octavo.server.protocol.requests import CompletionRequest
from octavo.server.protocol.responses import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionResponse,
)
from octavo.server.sse import DONE, event
from octavo.server.state import ServerState
from octavo.tokenizer.tokenizer import Tokenizer

MAX_PROMPTS = 4096
# tokenizing this many characters takes some milliseconds: longer prompts go to a thread
_INLINE_CHARS = 4096


def routes(state: ServerState) -> list[Route]:
    """The route of this file."""

    async def completions(request: Request) -> Response:
        asked = await read_request(request, state, CompletionRequest)
        answer = _Completion(asked, state)
        prompts = await _prompts(asked, state)
        await answer.generation.start(
            prompts, answer.params, priority=check_priority(asked, state),
            kind="delta" if asked.stream else "final",
            # 16 is our default: nobody is told that it does not fit
            strict_max_tokens=asked.max_tokens is not None, score_only=asked.max_tokens == 0)
        return await respond(answer, request, stream=asked.stream)

    return [Route("/v1/completions", completions, methods=["POST"])]


class _Completion:
    """One request and the shaping of its answer."""

    def __init__(self, request: CompletionRequest, state: ServerState) -> None:
        self._request = request
        self._tokenizer = state.llm.tokenizer
        self._model = state.model_name(request.model)
        self._id = state.response_id("cmpl", request.request_id)
        self._created = int(time.time())
        self._fingerprint = state.fingerprint
        self.params: SamplingParams = completion_params(request, state)
        self.generation = Generation(state, self._id)
        self._writers: dict[int, CompletionLogprobWriter] = {}
        self._prompt_entries: dict[int, list[Any]] = {}

    def whole(self, outputs: list[RequestOutput]) -> CompletionResponse:
        """The answer in one piece."""
        if ranks_samples(self._request):
            for output in outputs:
                output.outputs = _best(output.outputs, self._request.n)
        choices = [self._choice(index, output, part)
                   for index, output in enumerate(outputs) for part in output.outputs]
        if self._request.max_tokens == 0:
            self.generation.num_completion_tokens = 0
        response = self._response(choices)
        response.usage = self.generation.usage()
        if self._request.timings or self._request.timings_per_token:
            response.timings = self.generation.timings()
        return response

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        options = self._request.stream_options
        with_usage = options is not None and options.include_usage
        try:
            async for index, output in self.generation.outputs():
                self.generation.count(index, output)
                data = b"".join(self._chunks(index, output, with_usage))
                if data:
                    yield data
            if self._request.max_tokens == 0:
                self.generation.num_completion_tokens = 0
            last = b""
            if with_usage:
                response = self._response([])
                response.usage = self.generation.usage()
                if self._request.timings or self._request.timings_per_token:
                    response.timings = self.generation.timings()
                last = event(msgspec.json.encode(response))
            yield last + DONE
        finally:
            await self.generation.close()

    def _chunks(self, index: int, output: RequestOutput, with_usage: bool) -> list[bytes]:
        request, found = self._request, []
        for place, part in enumerate(output.outputs, start=1):
            choice = self._choice(index, output, part)
            if self._says_nothing(choice):
                continue
            response = self._response([choice])
            if with_usage:
                response.usage = None
            is_last = self.generation.has_ended and place == len(output.outputs)
            if request.timings_per_token or (request.timings and is_last and not with_usage):
                response.timings = self.generation.timings()
            found.append(event(msgspec.json.encode(response)))
        return found

    def _response(self, choices: list[CompletionChoice]) -> CompletionResponse:
        return CompletionResponse(
            id=self._id, created=self._created, model=self._model,
            system_fingerprint=self._fingerprint, choices=choices)

    def _says_nothing(self, choice: CompletionChoice) -> bool:
        """Its text is held back: it may be the start of a stop string or of a character."""
        return (not choice.text and choice.finish_reason is None and choice.logprobs is None
                and choice.token_ids is UNSET)

    def _choice(self, prompt_index: int, output: RequestOutput,
                part: CompletionOutput) -> CompletionChoice:
        request = self._request
        index = prompt_index * request.n + part.index
        is_first = index not in self._writers
        text, token_ids, entries = part.text, part.token_ids, part.logprobs
        if request.max_tokens == 0:
            text, token_ids, entries = "", [], None if entries is None else []
        logprobs = None
        if is_first:
            self._writers[index] = CompletionLogprobWriter(
                self._tokenizer, request.logprobs or 0, request.logprob_token_ids,
                skip_special_tokens=self.params.skip_special_tokens)
            # a delta has the prompt's logprobs once, for all its samples
            if output.prompt_logprobs is not None:
                self._prompt_entries[prompt_index] = output.prompt_logprobs
            if request.echo:
                text, logprobs = self._echoed(prompt_index, index, output, text)
        asked = request.logprobs is not None or request.logprob_token_ids is not None
        if entries is not None and asked:
            logprobs = self._writers[index].write(token_ids, entries, logprobs)
        choice = CompletionChoice(
            index=index, text=text, logprobs=logprobs, finish_reason=part.finish_reason,
            stop_reason=part.stop_reason)
        if part.finish_reason is not None:
            choice.seed = part.seed
            if request.max_tokens == 0:
                choice.finish_reason, choice.stop_reason = "length", None
        if request.return_token_ids:
            choice.token_ids = token_ids
            if is_first:
                choice.prompt_token_ids = output.prompt_token_ids
        if request.prompt_logprobs is not None and prompt_index in self._prompt_entries:
            choice.prompt_logprobs = prompt_logprobs(self._prompt_entries[prompt_index])
        return choice

    def _echoed(self, prompt_index: int, index: int, output: RequestOutput,
                text: str) -> tuple[str, CompletionLogprobs | None]:
        """The text with its prompt before it, and the prompt's logprobs where they are wanted."""
        ids = output.prompt_token_ids
        prompt = output.prompt
        if prompt is None or self.params.truncate_prompt_tokens is not None:
            prompt = self._tokenizer.decode(
                ids, skip_special_tokens=self.params.skip_special_tokens)
        entries = self._prompt_entries.get(prompt_index)
        if self._request.logprobs is not None and entries is not None:
            return prompt + text, self._writers[index].write(ids, entries)
        self._writers[index].skip(prompt)
        return prompt + text, None


def _best(samples: list[CompletionOutput], n: int) -> list[CompletionOutput]:
    """The n samples of the highest mean logprob a token, best first, numbered anew."""

    def mean(sample: CompletionOutput) -> float:
        assert sample.cumulative_logprob is not None
        return sample.cumulative_logprob / max(len(sample.token_ids), 1)

    # equal ones keep their order: the answer must not depend on chance
    best = sorted(samples, key=lambda s: (-mean(s), s.index))[:n]
    return [dataclasses.replace(sample, index=i) for i, sample in enumerate(best)]


async def _prompts(request: CompletionRequest, state: ServerState) -> list[Any]:
    """Each prompt as the engine takes it. Raises InvalidRequestError."""
    given = request.prompt
    if isinstance(given, list) and any(_holds_float(item) for item in given):
        given = whole_numbers(given)
    if given is None or given == "":
        items: list[Any] = [[_document_start(state.llm.tokenizer)]]
    elif isinstance(given, str) or (
            isinstance(given, list) and given and all(isinstance(i, int) for i in given)):
        items = [given]
    elif isinstance(given, list):
        items = given
    else:
        raise InvalidRequestError("prompt must be a text, a list of texts, token ids, or a list of "
                                  "lists of token ids", param="prompt")
    if not items:
        raise InvalidRequestError("prompt is empty: give at least one token", param="prompt")
    if len(items) > MAX_PROMPTS:
        raise InvalidRequestError(f"prompt has {len(items)} entries: give at most {MAX_PROMPTS}",
                                  param="prompt")
    texts = [item for item in items if isinstance(item, str)]
    for index, item in enumerate(items):
        if not isinstance(item, str):
            _check_ids(item, f"prompt[{index}]" if len(items) > 1 else "prompt")
    if request.suffix:
        return await _gaps(items, texts, request, state)
    ids = iter(await _encode(texts, request, state))
    return [{"prompt": item, "prompt_token_ids": next(ids)} if isinstance(item, str) else item
            for item in items]


async def _gaps(items: list[Any], texts: list[str], request: CompletionRequest,
                state: ServerState) -> list[Any]:
    """Prompts for the text between each item and the suffix."""
    assert request.suffix is not None
    wants_bos = request.add_special_tokens
    bare = msgspec.structs.replace(request, add_special_tokens=False)
    *encoded, after = await _encode([*texts, request.suffix], bare, state)
    ids = iter(encoded)
    gap = state.llm.tokenizer.encode_gap
    prompts: list[Any] = []
    for item in items:
        before = next(ids) if isinstance(item, str) else item
        filled = gap(before, after, add_special_tokens=wants_bos and isinstance(item, str))
        prompts.append({"prompt": item, "prompt_token_ids": filled} if isinstance(item, str)
                       else {"prompt_token_ids": filled})
    return prompts


def _holds_float(item: Any) -> bool:
    return isinstance(item, float) or (
        isinstance(item, list) and any(isinstance(i, float) for i in item))


def _document_start(tokenizer: Tokenizer) -> int:
    """The token behind which a text begins, as OpenAI's API has it; where the vocabulary lacks that
    one, the model's own."""
    found = (tokenizer.token_to_id("<|endoftext|>"), tokenizer.bos_token_id,
             *tokenizer.eos_token_ids)
    return next((token_id for token_id in found if token_id is not None), 0)


def _check_ids(item: Any, where: str) -> None:
    if not isinstance(item, list) or not item:
        raise InvalidRequestError(f"{where} must be a text or a list of token ids, not empty",
                                  param="prompt")
    if any(not isinstance(i, int) or isinstance(i, bool) for i in item):
        raise InvalidRequestError(f"{where} holds something that is not a token id",
                                  param="prompt")


async def _encode(texts: list[str], request: CompletionRequest,
                  state: ServerState) -> list[list[int]]:
    """A prompt is raw text: control tokens written in it are meant."""
    if not texts:
        return []

    def encode() -> list[list[int]]:
        return state.llm.tokenizer.encode_batch(
            texts, add_special_tokens=request.add_special_tokens, parse_special=True)

    if sum(map(len, texts)) < _INLINE_CHARS:
        return encode()
    return await asyncio.to_thread(encode)
