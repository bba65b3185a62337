"""LiveFeed: one watch of the engine core, and everybody who listens to it. One event loop.

Each listener has a mailbox of bounded size in which what it has not fetched is merged: steps beyond
the bound are dropped and counted, of snapshots the newest is kept. Nobody waits for a listener.
Everything is encoded once, for all of them. Knows no socket.
"""

import asyncio
import collections
from collections.abc import Callable

import msgspec

from octavo.core.live import LiveHello
from octavo.core.messages import CoreEvents
from octavo.engine.live_watch import MAX_STEPS
from octavo.errors import EngineDeadError, ListenersFullError, OctavoError

MAX_LISTENERS = 16

_encoder = msgspec.json.Encoder()

Event = tuple[str, bytes]  # its name, and its data as JSON


class LiveFeed:
    """The watch is on while there are listeners, at the shortest of their intervals.

    watch: asks the engine for events each so many seconds (0: no more), if there is an engine.
    """

    def __init__(self, watch: Callable[[float], None]) -> None:
        self._watch = watch
        self._interval_s = 0.0  # what the engine was asked for
        self._listeners: list[LiveListener] = []
        self._hello: bytes | None = None
        self._state: bytes | None = None
        self._closed = False

    @property
    def num_listeners(self) -> int:
        return len(self._listeners)

    def listen(self, interval_s: float) -> "LiveListener":
        """A listener that gets at most one batch of events each interval_s seconds. Whoever has it
        must close it. Raises ListenersFullError beyond MAX_LISTENERS."""
        if self._closed:
            raise EngineDeadError("the engine is shutting down: nothing can be watched")
        if len(self._listeners) >= MAX_LISTENERS:
            raise ListenersFullError(
                f"{MAX_LISTENERS} live views are open, which is the most that may be: close one")
        listener = LiveListener(interval_s, self._forget)
        if self._hello is not None:
            listener.greet(self._hello)
        listener.put([], 0, self._state)
        self._listeners.append(listener)
        self._ask()
        return listener

    def take(self, events: CoreEvents) -> None:
        """What the watch tells."""
        if not self._listeners:
            return  # the last one left a moment ago
        steps = [_encoder.encode(step) for step in events.steps.steps]
        state = None
        if events.state is not None:
            self._state = state = _encoder.encode(events.state)
        for listener in self._listeners:
            listener.put(steps, events.steps.dropped, state)

    def engine_ready(self, hello: LiveHello) -> None:
        """An engine is there, the first or another: everybody is told, and it is watched."""
        self._hello = _encoder.encode(hello)
        self._state = None
        self._interval_s = 0.0
        for listener in self._listeners:
            listener.greet(self._hello)
        self._ask()

    def close(self, error: OctavoError | None = None) -> None:
        """Ends all listeners, with this error where there is one. Idempotent."""
        self._closed = True
        for listener in list(self._listeners):
            listener.end(error)

    def _forget(self, listener: "LiveListener") -> None:
        self._listeners.remove(listener)
        self._ask()

    def _ask(self) -> None:
        wanted = min((listener.interval_s for listener in self._listeners), default=0.0)
        if wanted != self._interval_s:
            self._interval_s = wanted
            self._watch(wanted)
        if not wanted:
            self._state = None  # nobody keeps it up to date


class LiveListener:
    """A mailbox of live events. One consumer.

    num_dropped: steps that it never got, because it did not fetch them in time or the engine left
    them out.
    """

    def __init__(self, interval_s: float, forget: "Callable[[LiveListener], None]") -> None:
        self.interval_s = interval_s
        self.num_dropped = 0
        self._forget = forget
        self._hello: bytes | None = None
        self._steps: collections.deque[bytes] = collections.deque(maxlen=MAX_STEPS)
        self._dropped = 0
        self._state: bytes | None = None
        self._error: OctavoError | None = None
        self._news = asyncio.Event()
        self._ended = asyncio.Event()
        self._due_s = 0.0

    def greet(self, hello: bytes) -> None:
        """An engine begins: what is known of the one before is void."""
        self._hello = hello
        self._steps.clear()
        self._dropped = 0
        self._state = None
        self._due_s = 0.0
        self._news.set()

    def put(self, steps: list[bytes], dropped: int, state: bytes | None) -> None:
        """Events to fetch. Never waits."""
        lost = dropped + max(len(self._steps) + len(steps) - MAX_STEPS, 0)
        self._dropped += lost
        self.num_dropped += lost
        self._steps.extend(steps)
        if state is not None:
            self._state = state
        if self._steps or state is not None:
            self._news.set()

    async def get(self) -> list[Event]:
        """Waits for events: hello, steps and state, in this order; empty when there are no more.
        Raises the error that ended the feed."""
        await self._news.wait()
        clock = asyncio.get_running_loop().time
        if not self._ended.is_set() and clock() < self._due_s:
            try:
                async with asyncio.timeout_at(self._due_s):
                    await self._ended.wait()
            except TimeoutError:
                pass
        if self._ended.is_set():
            if self._error is not None:
                raise type(self._error)(self._error.message)
            return []
        self._due_s = clock() + self.interval_s
        self._news.clear()
        return self._take()

    def _take(self) -> list[Event]:
        found: list[Event] = []
        if self._hello is not None:
            found.append(("hello", self._hello))
            self._hello = None
        if self._steps:
            found.append(("steps", b'{"steps":[%b],"dropped":%d}' % (
                b",".join(self._steps), self._dropped)))
            self._steps.clear()
            self._dropped = 0
        if self._state is not None:
            found.append(("state", self._state))
            self._state = None
        return found

    async def wait_ended(self) -> None:
        """Until nothing more will come."""
        await self._ended.wait()

    def end(self, error: OctavoError | None) -> None:
        """Nothing more will come."""
        if not self._ended.is_set():
            self._error = error
            self._ended.set()
            self._news.set()
            self._forget(self)

    def close(self) -> None:
        """Nobody listens any more. Idempotent."""
        self.end(None)
