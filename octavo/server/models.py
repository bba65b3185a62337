"""GET /v1/models and /v1/models/{id}: every name the model is served under."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.server.errors import JSON
from octavo.server.protocol.responses import ModelCard, ModelList
from octavo.server.state import ServerState


def routes(state: ServerState) -> list[Route]:
    """The routes of this file. They answer while the model loads."""

    async def list_models(request: Request) -> Response:
        cards = [_card(state, name) for name in state.names]
        return Response(msgspec.json.encode(ModelList(data=cards)), media_type=JSON)

    async def get_model(request: Request) -> Response:
        name = state.model_name(request.path_params["model_id"])
        return Response(msgspec.json.encode(_card(state, name)), media_type=JSON)

    return [
        Route("/v1/models", list_models, methods=["GET"]),
        Route("/v1/models/{model_id:path}", get_model, methods=["GET"]),  # ids may hold slashes
    ]


def _card(state: ServerState, name: str) -> ModelCard:
    return ModelCard(id=name, created=state.created, root=state.names[0],
                     max_model_len=state.max_model_len)
