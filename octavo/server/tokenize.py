"""POST /tokenize, POST /detokenize, GET /tokenizer_info. They answer while the model loads."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.errors import InvalidRequestError
from octavo.server.body import read_request
from octavo.server.errors import JSON
from octavo.server.messages import chat_prompt
from octavo.server.openai_tools import tools_of
from octavo.server.protocol.requests import DetokenizeRequest, TokenizeRequest
from octavo.server.protocol.responses import DetokenizeResponse, TokenizeResponse
from octavo.server.state import ServerState
from octavo.tools.plan import AnswerPlan


def routes(state: ServerState) -> list[Route]:
    """The routes of this file."""

    async def tokenize(request: Request) -> Response:
        asked = await read_request(request, state, TokenizeRequest)
        state.model_name(asked.model)
        ids = await _token_ids(asked, state)
        return _json(_tokenized(ids, asked, state))

    async def detokenize(request: Request) -> Response:
        asked = await read_request(request, state, DetokenizeRequest)
        state.model_name(asked.model)
        size = state.llm.tokenizer.vocab_size
        for token_id in asked.tokens:
            if not 0 <= token_id < size:
                raise InvalidRequestError(
                    f"tokens holds {token_id}: the vocabulary has the ids 0 to {size - 1}",
                    param="tokens")
        text = await asyncio.to_thread(state.llm.tokenizer.decode, asked.tokens,
                                       skip_special_tokens=False)
        return _json(DetokenizeResponse(prompt=text, content=text))

    async def tokenizer_info(request: Request) -> Response:
        return _json(_info(state))

    return [
        Route("/tokenize", tokenize, methods=["POST"]),
        Route("/detokenize", detokenize, methods=["POST"]),
        Route("/tokenizer_info", tokenizer_info, methods=["GET"]),
    ]


async def _token_ids(asked: TokenizeRequest, state: ServerState) -> list[int]:
    given = [name for name in ("prompt", "content", "messages")
             if getattr(asked, name) is not None]
    if len(given) != 1:
        raise InvalidRequestError("give one of prompt, content and messages",
                                  param=given[1] if given else "prompt")
    if asked.messages is not None:
        plan = AnswerPlan(state.formats, tools_of(asked.tools))
        prompt = await chat_prompt(asked.messages, asked, state, plan)
        ids: list[int] = prompt["prompt_token_ids"]
        return ids
    text = asked.prompt if asked.prompt is not None else asked.content
    assert text is not None
    return await asyncio.to_thread(
        state.llm.tokenizer.encode, text, add_special_tokens=asked.add_special_tokens,
        parse_special=True)


def _tokenized(ids: list[int], asked: TokenizeRequest, state: ServerState) -> TokenizeResponse:
    tokenizer = state.llm.tokenizer
    tokens: list[Any] = ids
    if asked.with_pieces:
        tokens = [{"id": i, "piece": tokenizer.id_to_token_text(i)} for i in ids]
    strs = [tokenizer.token_str(i) for i in ids] if asked.return_token_strs else None
    return TokenizeResponse(count=len(ids), max_model_len=state.max_model_len, tokens=tokens,
                            token_strs=strs)


def _info(state: ServerState) -> dict[str, Any]:
    tokenizer = state.llm.tokenizer

    def text(token_id: int | None) -> str | None:
        return None if token_id is None else tokenizer.id_to_token_text(token_id)

    eos = tokenizer.eos_token_ids[0] if tokenizer.eos_token_ids else None
    return {
        "tokenizer_class": type(tokenizer).__name__,
        "vocab_size": tokenizer.vocab_size,
        "bos_token": text(tokenizer.bos_token_id),
        "eos_token": text(eos),
        "pad_token": None,  # nothing is padded here
        "chat_template": state.llm.chat_template.source,
        "max_model_len": state.max_model_len,
    }


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)
