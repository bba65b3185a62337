"""EngineSupervisor: keeps one engine up. Starts it again when it dies, ends it when it hangs.

Decides only whether there is an engine; what requests are and how they fail is its owner's.
"""

import asyncio
import collections
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable

from octavo.core.messages import CoreEvents, EngineCoreOutputs, EngineReady
from octavo.engine.core_client import AsyncCoreClient, CoreHost
from octavo.errors import EngineDeadError, OctavoError

logger = logging.getLogger(__name__)

# An engine that dies more often than `max_restarts` times in this long will go on dying: better to
# end, so that whoever watches the service hears of it.
RESTART_WINDOW_S = 600.0
# how often a busy engine is looked at
_LOOK_S = 0.25
# a look this late means that this process slept, and the engine's news may wait to be read
_LATE_S = 1.0


@dataclasses.dataclass(slots=True, frozen=True)
class Upkeep:
    """How much is done to keep an engine up.

    max_restarts: how often in RESTART_WINDOW_S a dead engine is started again.
    step_timeout_s: a busy engine without news for this long is ended; 0: never.
    """

    max_restarts: int = 0
    step_timeout_s: float = 0.0


@dataclasses.dataclass(slots=True, frozen=True)
class Listener:
    """Who hears of the engine, all in the event loop.

    on_outputs: each step's news. on_events: what a watch tells. on_ready: an engine has loaded, the
    first or another. on_lost: the engine is gone, and another is being started.
    on_death: the engine is gone (or could not load the first time) and stays away.
    is_busy: whether news is expected. on_look: called now and then while it is.
    """

    on_outputs: Callable[[EngineCoreOutputs], None]
    on_events: Callable[[CoreEvents], None]
    on_ready: Callable[[EngineReady], None]
    on_lost: Callable[[OctavoError], None]
    on_death: Callable[[OctavoError], None]
    is_busy: Callable[[], bool]
    on_look: Callable[[], None]


class EngineSupervisor:
    """One engine, and after it the next. All methods belong to one event loop."""

    def __init__(self, host: CoreHost, start_again: Callable[[], CoreHost] | None, *,
                 upkeep: Upkeep, listener: Listener) -> None:
        """host: the engine that was started. start_again: starts another; None: it cannot be."""
        self._host = host
        self._start_again = start_again
        self._upkeep = upkeep
        self._listener = listener
        self._client: AsyncCoreClient | None = None
        self._starting: asyncio.Task[None] | None = None
        self._again: asyncio.Task[None] | None = None
        self._was_ready = False
        self._closing = False
        self._restarts: collections.deque[float] = collections.deque()
        self._look: asyncio.TimerHandle | None = None
        self._last_news = 0.0
        self._look_due = 0.0
        self.num_restarts = 0

    @property
    def host(self) -> CoreHost:
        """The engine of now."""
        return self._host

    @property
    def client(self) -> AsyncCoreClient | None:
        """The way to the engine; None before start() and while another engine is started."""
        return self._client

    @property
    def is_ready(self) -> bool:
        client = self._client
        return client is not None and client.is_ready

    @property
    def is_restarting(self) -> bool:
        """An engine died, and the next is not ready yet."""
        return self._again is not None and not self.is_ready

    async def start(self) -> AsyncCoreClient | None:
        """Begins to listen to the engine. Idempotent."""
        if self._starting is None:
            self._client = self._new_client()
            self._starting = asyncio.create_task(self._client.start())
        await asyncio.shield(self._starting)
        return self._client

    def _new_client(self) -> AsyncCoreClient:
        client = AsyncCoreClient(self._host, on_outputs=self._take,
                                 on_events=self._listener.on_events, on_death=self._lost)
        client.ready.add_done_callback(self._note_ready)
        return client

    def _note_ready(self, ready: "asyncio.Future[EngineReady]") -> None:
        if not ready.cancelled() and ready.exception() is None:
            self._was_ready = True
            self._listener.on_ready(ready.result())

    def expect_news(self) -> None:
        """Call when a request was sent: from now on the engine owes news."""
        if self._look is None:
            self._last_news = time.monotonic()
            self._look_later()

    def _take(self, outputs: EngineCoreOutputs) -> None:
        self._last_news = time.monotonic()
        self._listener.on_outputs(outputs)

    def _look_later(self) -> None:
        self._look_due = time.monotonic() + _LOOK_S
        self._look = asyncio.get_running_loop().call_later(_LOOK_S, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        if self._closing or not self._listener.is_busy():
            return
        now = time.monotonic()
        if now - self._look_due > _LATE_S:
            self._last_news = now
        self._look_later()
        self._listener.on_look()
        limit = self._upkeep.step_timeout_s
        if limit and now - self._last_news > limit and self.is_ready:
            assert self._client is not None
            self._last_news = now
            self._client.kill(f"the engine gave no sign of life for {limit:g} s and was ended")

    def _lost(self, error: OctavoError) -> None:
        if not self._may_restart():
            self._listener.on_death(error)
            return
        self.num_restarts += 1
        logger.error("%s; it is started again (restart %d of at most %d in %d minutes)",
                     error.message, len(self._restarts), self._upkeep.max_restarts,
                     RESTART_WINDOW_S // 60)
        self._client = None
        self._again = asyncio.create_task(self._restart(), name="octavo-restart")
        self._listener.on_lost(EngineDeadError(
            f"{error.message}. The engine is being started again: send the request again"))

    def _may_restart(self) -> bool:
        """Counts a restart if one more is allowed. What cannot load once never will."""
        if self._start_again is None or not self._was_ready or self._closing:
            return False
        now = time.monotonic()
        while self._restarts and now - self._restarts[0] > RESTART_WINDOW_S:
            self._restarts.popleft()
        if len(self._restarts) >= self._upkeep.max_restarts:
            return False
        self._restarts.append(now)
        return True

    async def _restart(self) -> None:
        assert self._start_again is not None
        started = time.monotonic()
        self._host.sock.close()
        try:
            self._host = await asyncio.to_thread(self._start_again)
        except OSError as error:  # no memory for a process, say
            self._listener.on_death(EngineDeadError(
                f"the engine died and could not be started again: {error}"))
            return
        self._client = client = self._new_client()
        await client.start()
        # an engine that fails to load is lost like any other
        with contextlib.suppress(OctavoError):
            await asyncio.shield(client.ready)
            logger.info("the engine is ready again after %.1f s", time.monotonic() - started)

    async def shutdown(self) -> None:
        """Ends the engine. Idempotent."""
        self._closing = True
        if self._look is not None:
            self._look.cancel()
        if self._again is not None and self._client is None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._again  # a process that is being started must be there to be ended
        client = await self.start() if self._again is None else self._client
        if client is not None:
            await client.shutdown()
