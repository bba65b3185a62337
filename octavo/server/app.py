"""The ASGI application: routes, middleware, and the engine's life inside the server's.

Starts nothing of the network; run.py does.
"""

import asyncio
import contextlib
import ipaddress
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from octavo.config import ServerSection
from octavo.engine.stats_log import StatsLog
from octavo.errors import OctavoError
from octavo.log_format import fields
from octavo.server import (
    decisions,
    health,
    live,
    metrics_route,
    models,
    openai_chat,
    openai_completions,
    render,
    tokenize,
)
from octavo.server.anthropic import routes as anthropic
from octavo.server.errors import on_http_error, on_octavo_error
from octavo.server.gate import KeyCheck, OriginCheck, RequestGate
from octavo.server.observe import RequestObserver, Tracer
from octavo.server.ollama import routes as ollama
from octavo.server.openai_responses import routes as openai_responses
from octavo.server.openapi import routes as openapi
from octavo.server.page import routes as page
from octavo.server.state import ServedEngine, ServerState

logger = logging.getLogger("octavo.stats")

_FAMILIES = (models, openai_completions, openai_chat, openai_responses, decisions, anthropic,
             ollama, render, tokenize, health, live, metrics_route, openapi, page)


def create_app(llm: ServedEngine, section: ServerSection, *, allowed_origins: Sequence[str] = (),
               log_requests: bool = False, tracer: Tracer | None = None,
               on_ready: Callable[[], None] | None = None,
               on_load_error: Callable[[OctavoError], None] | None = None) -> Starlette:
    """The application over one engine; `app.state.server` is its ServerState.

    The engine loads while the application already answers (503 where the model is needed).
    tracer: gets the record of each request that is over; closed at the end.
    on_ready: called once when it can serve. on_load_error: called instead if it cannot load.
    At the end of the lifespan the engine is shut down.
    """
    state = ServerState(llm, section)

    async def load() -> None:
        try:
            await llm.wait_ready()
        except OctavoError as error:
            if on_load_error is not None and not state.draining:
                on_load_error(error)
        else:
            if on_ready is not None:
                on_ready()

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(load(), name="octavo-load"),
                 asyncio.create_task(_log_stats(state), name="octavo-stats")]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await llm.shutdown()
            if tracer is not None:
                await asyncio.to_thread(tracer.close)

    routes = [route for family in _FAMILIES for route in family.routes(state)]
    observe = RequestObserver(routes, state.http_metrics, log_requests=log_requests, tracer=tracer)
    app = Starlette(
        routes=routes,
        middleware=_middleware(section, allowed_origins, observe),
        exception_handlers={OctavoError: on_octavo_error, HTTPException: on_http_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.server = state
    return app


async def _log_stats(state: ServerState) -> None:
    """A line of statistics now and then, while there is traffic."""
    interval = state.section.log_interval_s
    if not interval or not logger.isEnabledFor(logging.INFO):
        return
    stats = StatsLog(state.llm.metrics, time.monotonic())
    while True:
        await asyncio.sleep(interval)
        line = stats.line(await state.llm.stats(), time.monotonic())
        if line is not None:
            logger.info("%s", line[0], extra=fields(line[1]))


def _middleware(section: ServerSection, allowed_origins: Sequence[str],
                observe: RequestObserver) -> list[Middleware]:
    """Outermost first. CORS is outside of the keys: a browser's preflight carries none."""
    found = [Middleware(RequestGate, observe=observe)]
    if allowed_origins:
        found.append(Middleware(
            CORSMiddleware, allow_origins=list(allowed_origins), allow_methods=["*"],
            allow_headers=["*"], expose_headers=["x-request-id"]))
    found.append(Middleware(OriginCheck, allowed_origins=allowed_origins,
                            is_local=_is_loopback(section.host)))
    if section.api_keys:
        found.append(Middleware(KeyCheck, api_keys=section.api_keys))
    return found


def _is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a server on that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
