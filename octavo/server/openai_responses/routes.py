"""The routes of the Responses API: make one, read, list, delete, count."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.errors import InvalidRequestError
from octavo.server.answer import respond
from octavo.server.body import read_request
from octavo.server.errors import JSON
from octavo.server.openai_responses.conversation import (
    conversation_of,
    naming_fields,
    prompt_of,
)
from octavo.server.openai_responses.fields import plan_of, refuse_conversation, text_format
from octavo.server.openai_responses.input_items import Item
from octavo.server.openai_responses.response import ResponseAnswer, check_id_is_free
from octavo.server.openai_responses.store import ResponseStore
from octavo.server.params import check_priority
from octavo.server.protocol.response_object import DeletedResponse, InputTokens, ItemList
from octavo.server.protocol.response_request import InputTokensRequest, ResponseRequest
from octavo.server.state import ServerState

_PATH = "/v1/responses/{response_id}"
_MAX_PAGE = 100
_DEFAULT_PAGE = 20


def routes(state: ServerState) -> list[Route]:
    """The routes of this package, over one store."""
    store = ResponseStore()

    async def create(request: Request) -> Response:
        asked = await read_request(request, state, ResponseRequest)
        refuse_conversation(asked)
        check_id_is_free(asked, store)
        conversation = conversation_of(asked, store)
        answer = ResponseAnswer(asked, state, store, conversation)
        prompt = await prompt_of(conversation.messages, asked, state, answer.plan)
        await answer.set_prompt(prompt["prompt"])
        with naming_fields():
            await answer.generation.start(
                [prompt], answer.params, priority=check_priority(asked, state),
                kind="delta" if asked.stream else "final")
        return await respond(answer, request, stream=asked.stream)

    async def count(request: Request) -> Response:
        asked = await read_request(request, state, InputTokensRequest)
        state.model_name(asked.model)
        refuse_conversation(asked)
        text_format(asked.text)
        messages = conversation_of(asked, store).messages
        prompt = await prompt_of(messages, asked, state, plan_of(asked, state.formats))
        return _json(InputTokens(input_tokens=len(prompt["prompt_token_ids"])))

    async def retrieve(request: Request) -> Response:
        if request.query_params.get("stream", "").lower() in ("1", "true"):
            raise InvalidRequestError("stream is true: a response that is complete comes in one "
                                      "piece, leave stream out", param="stream")
        return Response(store.get(request.path_params["response_id"]).body, media_type=JSON)

    async def delete(request: Request) -> Response:
        response_id = request.path_params["response_id"]
        store.delete(response_id)
        return _json(DeletedResponse(id=response_id))

    async def cancel(request: Request) -> Response:
        store.get(request.path_params["response_id"])
        raise InvalidRequestError("response_id is that of a complete response: only one that is "
                                  "made in the background can be cancelled", param="response_id")

    async def list_input_items(request: Request) -> Response:
        stored = store.get(request.path_params["response_id"])
        return _json(_page(stored.input_items(), request))

    return [
        Route("/v1/responses", create, methods=["POST"]),
        Route("/v1/responses/input_tokens", count, methods=["POST"]),
        Route(_PATH, retrieve, methods=["GET"]),
        Route(_PATH, delete, methods=["DELETE"]),
        Route(f"{_PATH}/cancel", cancel, methods=["POST"]),
        Route(f"{_PATH}/input_items", list_input_items, methods=["GET"]),
    ]


def _page(items: list[Item], request: Request) -> ItemList:
    """Some of the items: the newest first unless order is "asc". Raises InvalidRequestError."""
    query = request.query_params
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequestError(f"order is {order[:80]!r}: give 'asc' or 'desc'", param="order")
    limit = query.get("limit", str(_DEFAULT_PAGE))
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 4
            and 1 <= int(limit) <= _MAX_PAGE):
        raise InvalidRequestError(f"limit is {limit[:80]!r}: give 1 to {_MAX_PAGE}",
                                  param="limit")
    if order == "desc":
        items = items[::-1]
    start, after = 0, query.get("after")
    if after is not None:
        places = [i for i, item in enumerate(items) if item["id"] == after]
        if not places:
            raise InvalidRequestError(f"after is {after[:80]!r}: no item of this response has "
                                      "that id", param="after")
        start = places[0] + 1
    page = items[start: start + int(limit)]
    return ItemList(data=page, first_id=page[0]["id"] if page else None,
                    last_id=page[-1]["id"] if page else None,
                    has_more=start + len(page) < len(items))


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)
