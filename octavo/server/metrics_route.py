"""GET /metrics: all metrics in Prometheus' text format.

No OpenMetrics: it would add nothing here, and prometheus_client writes the colon of a name as an
underscore in it for some scrapers, so that dashboards would find nothing.
"""

import os

from prometheus_client.exposition import generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from octavo.engine.metrics_export import make_registry
from octavo.server.process_metrics import ProcessMetrics
from octavo.server.state import ServerState

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # the version every scraper reads


def routes(state: ServerState) -> list[Route]:
    """The route of this file."""
    registry = make_registry(state.http_metrics)
    registry.register(ProcessMetrics(lambda: _pids(state),
                                     prefix=state.llm.config.server.metrics_prefix))

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), headers={"content-type": _CONTENT_TYPE})

    return [Route("/metrics", metrics, methods=["GET"])]


def _pids(state: ServerState) -> dict[str, int]:
    engine = state.llm.engine_pid
    return {"server": os.getpid(), **({} if engine is None else {"engine": engine})}
