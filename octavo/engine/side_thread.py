"""A thread beside the one that runs the steps, for Python while a native call runs.

The native call stays in the caller's thread. Were it the call that moved, each step would wait for
two hand-overs; so the caller waits for none, and the interpreter lock, which the call lets go,
decides when the other side begins. Knows no engine, scheduler or socket.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


class SideThread:
    """One daemon thread, asleep between its calls. One caller at a time."""

    def __init__(self) -> None:
        self._work: Callable[[], object] | None = None
        self._error: BaseException | None = None
        self._closed = False
        # binary semaphores: free = there is work; free = it is done
        self._go, self._done = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._done.acquire()
        threading.Thread(target=self._serve, name="octavo-side", daemon=True).start()

    def run(self, call: Callable[[], _T], beside: Callable[[], object]) -> _T:
        """Returns call(), made here; `beside` runs in the thread meanwhile, and has ended, too.

        Raises what call() raises, else what `beside` raised.
        """
        self._work, self._error = beside, None
        self._go.release()
        try:
            result = call()
        finally:
            self._join()
        if self._error is not None:
            raise self._error
        return result

    def _join(self) -> None:
        try:
            self._done.acquire()
        except BaseException:  # an impatient Ctrl-C: `beside` must not run on unseen
            self._done.acquire()
            raise

    def _serve(self) -> None:
        while True:
            self._go.acquire()
            work, self._work = self._work, None
            if work is None:
                return
            try:
                work()
            except BaseException as error:  # the caller raises it
                self._error = error
            del work  # nothing is kept alive by a thread that sleeps
            self._done.release()

    def close(self) -> None:
        """Ends the thread. Idempotent. Does not wait for it: while the interpreter ends, no
        thread wakes up any more."""
        if not self._closed:
            self._closed = True
            self._go.release()


class NoSideThread:
    """No overlap: nothing runs beside."""

    def run(self, call: Callable[[], _T], beside: Callable[[], object]) -> _T:
        """Returns call(); `beside` is not called."""
        return call()

    def close(self) -> None:
        """Nothing to end."""
