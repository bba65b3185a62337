"""GET /health (alive), /ready (can serve), /ping, /load (requests in hand), /version."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo import __version__
from octavo.errors import EngineDeadError, EngineLoadingError
from octavo.server.errors import JSON
from octavo.server.state import ServerState


def routes(state: ServerState) -> list[Route]:
    """The routes of this file."""

    def check_engine() -> None:
        error = state.llm.errored
        if error is not None:
            raise EngineDeadError(error.message)
        if not state.llm.is_ready and not state.draining:
            raise EngineLoadingError("the model is still loading: try again in a few seconds")

    async def health(request: Request) -> Response:
        check_engine()
        return _ok({"status": "ok"})

    async def ready(request: Request) -> Response:
        check_engine()
        if state.draining:
            raise EngineDeadError("the server is shutting down: no new requests are taken")
        return _ok({"status": "ready"})

    async def ping(request: Request) -> Response:
        return _ok({})

    async def load(request: Request) -> Response:
        return _ok({"server_load": state.llm.num_unfinished_requests})

    async def version(request: Request) -> Response:
        return _ok({"version": __version__})

    return [
        Route("/health", health, methods=["GET"]),
        Route("/v1/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        Route("/ping", ping, methods=["GET", "POST"]),
        Route("/load", load, methods=["GET"]),
        Route("/version", version, methods=["GET"]),
    ]


def _ok(value: dict[str, str] | dict[str, int]) -> Response:
    return Response(msgspec.json.encode(value), media_type=JSON)
