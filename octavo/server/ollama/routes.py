"""Ollama's API over the one model that is served: /api/version, tags, ps, show, chat and
generate. Nothing here fetches, makes or removes models.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from octavo import __version__
from octavo.core.sampling_params import SamplingParams
from octavo.errors import InvalidRequestError
from octavo.server.answer import respond
from octavo.server.body import read_request
from octavo.server.errors import JSON
from octavo.server.messages import chat_prompt
from octavo.server.ollama.answer import STREAM, AnswerShape, OllamaAnswerStream, timestamp
from octavo.server.ollama.catalogue import Catalogue
from octavo.server.ollama.options import (
    FIELD_NAMES,
    chat_messages,
    chat_request,
    check_keep_alive,
    model_of,
    refuse_generate,
    sampling_params,
)
from octavo.server.openai_tools import tools_of
from octavo.server.planned import fields_named, planned_params
from octavo.server.protocol.ollama import (
    OllamaAnswer,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaRequest,
    OllamaShowRequest,
)
from octavo.server.state import ServerState
from octavo.tools.plan import AnswerPlan

T = TypeVar("T", bound=msgspec.Struct)

# What these routes follow. Clients compare it before they ask for more.
_API_VERSION = "0.12.6"
_MANAGING = (("pull", "POST"), ("push", "POST"), ("create", "POST"), ("copy", "POST"),
             ("delete", "DELETE"))


def routes(state: ServerState) -> list[Route]:
    """The routes of this file."""
    catalogue = Catalogue(state)

    async def version(request: Request) -> Response:
        return _json({"version": _API_VERSION, "octavo": __version__})

    def told(tell: Callable[[], dict[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return _json(await asyncio.to_thread(tell))
        return answer

    async def show(request: Request) -> Response:
        asked = await _read(request, state, OllamaShowRequest)
        model_of(asked.model or asked.name, state)
        return _json(await asyncio.to_thread(catalogue.show))

    async def chat(request: Request) -> Response:
        asked = await _read(request, state, OllamaChatRequest)
        model = model_of(asked.model, state)
        if not asked.messages:
            return _loaded(model, asked)
        with fields_named(FIELD_NAMES):
            answer = await _chat(asked, AnswerShape(
                model, is_chat=True, with_thinking=asked.think is not False,
                num_logprobs=_num_logprobs(asked)), state)
        return await respond(answer, request, stream=asked.stream, form=STREAM)

    async def generate(request: Request) -> Response:
        asked = await _read(request, state, OllamaGenerateRequest)
        model = model_of(asked.model, state)
        refuse_generate(asked)
        if not asked.prompt:
            return _loaded(model, asked)
        with fields_named(FIELD_NAMES):
            answer = await _generate(asked, AnswerShape(
                model, is_chat=False, with_thinking=asked.think is not False,
                with_context=not asked.raw, num_logprobs=_num_logprobs(asked)), state)
        return await respond(answer, request, stream=asked.stream, form=STREAM)

    async def managing(request: Request) -> Response:
        raise InvalidRequestError(
            f"{request.scope['path'][:200]} is not offered: this server has the one model it was "
            "started with; fetch others with 'octavo pull' and serve them with 'octavo serve'")

    return [
        Route("/api/version", version, methods=["GET"]),
        Route("/api/tags", told(catalogue.tags), methods=["GET"]),
        Route("/api/ps", told(catalogue.running), methods=["GET"]),
        Route("/api/show", show, methods=["POST"]),
        Route("/api/chat", chat, methods=["POST"]),
        Route("/api/generate", generate, methods=["POST"]),
        *[Route(f"/api/{name}", managing, methods=[method]) for name, method in _MANAGING],
        Route("/api/blobs/{digest}", managing, methods=["HEAD", "POST"]),
    ]


def greeting() -> Response:
    """What clients of this API expect of the route /."""
    return PlainTextResponse("Ollama is running (its API, served by Octavo)")


async def _read(request: Request, state: ServerState, kind: type[T]) -> T:
    """The usual way to call this API from a shell is curl -d, which names another media type."""
    return await read_request(request, state, kind, any_media_type=True)


async def _chat(asked: OllamaChatRequest, shape: AnswerShape, state: ServerState
                ) -> OllamaAnswerStream:
    plan = AnswerPlan(state.formats, tools_of(asked.tools))
    request = chat_request(asked, chat_messages(asked), state)
    params = sampling_params(asked, request, state)
    prompt = await chat_prompt(request.messages, request, state, plan)
    return await _started(asked, shape, state, plan, prompt, params)


async def _generate(asked: OllamaGenerateRequest, shape: AnswerShape, state: ServerState
                    ) -> OllamaAnswerStream:
    messages = [{"role": "user", "content": asked.prompt}]
    if asked.system:
        messages.insert(0, {"role": "system", "content": asked.system})
    request = chat_request(asked, messages, state)
    params = sampling_params(asked, request, state)
    formats = dataclasses.replace(state.formats, reasoning=None) if asked.raw else state.formats
    plan = AnswerPlan(formats)
    prompt: dict[str, Any] = {"prompt": asked.prompt}
    if not (asked.raw or state.llm.chat_template.is_missing):
        prompt = await chat_prompt(messages, request, state, plan)
    if asked.context:
        prompt = await _behind(asked.context, prompt, state)
    return await _started(asked, shape, state, plan, prompt, params)


async def _behind(context: list[int], prompt: dict[str, Any], state: ServerState
                  ) -> dict[str, Any]:
    """The prompt behind the tokens of an earlier answer."""
    size = state.llm.tokenizer.vocab_size
    for token_id in context:
        if not 0 <= token_id < size:
            raise InvalidRequestError(f"context holds {token_id}: the vocabulary has the ids 0 to "
                                      f"{size - 1}", param="context")
    text = prompt["prompt"]
    ids: list[int] = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else (
        await asyncio.to_thread(state.llm.tokenizer.encode, text, add_special_tokens=False,
                                parse_special=True))
    return {"prompt": text, "prompt_token_ids": context + ids}


async def _started(asked: OllamaRequest, shape: AnswerShape, state: ServerState, plan: AnswerPlan,
                   prompt: dict[str, Any], params: SamplingParams) -> OllamaAnswerStream:
    answer = OllamaAnswerStream(shape, state, plan, prompt["prompt"])
    held = await planned_params(params, plan, prompt["prompt"])
    # a bound beyond the context is no mistake to users of this API
    await answer.generation.start([prompt], held, priority=0, strict_max_tokens=False,
                                  kind="delta" if asked.stream else "final")
    return answer


def _num_logprobs(asked: OllamaRequest) -> int | None:
    return (asked.top_logprobs or 0) if asked.logprobs else None


def _loaded(model: str, asked: OllamaRequest) -> Response:
    """The answer to an empty request, which asks to load or unload. Neither is done here."""
    stays = check_keep_alive(asked.keep_alive)
    answer = OllamaAnswer(model=model, created_at=timestamp(), done=True,
                          done_reason="load" if stays else "unload")
    if isinstance(asked, OllamaChatRequest):
        answer.message = OllamaMessage()
    else:
        answer.response = ""
    return _json(answer)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)
