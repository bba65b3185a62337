"""GET /metrics: the engine's registry in Prometheus' text format."""

from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.server.state import ServerState


def routes(state: ServerState) -> list[Route]:
    """The route of this file."""

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(state.llm.metrics_registry),
                        headers={"content-type": CONTENT_TYPE_LATEST})

    return [Route("/metrics", metrics, methods=["GET"])]
