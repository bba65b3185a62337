"""Ctrl-C between steps instead of in them. Knows signals; knows no engine and no requests."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# terminals, and tools that run others, may deliver one Ctrl-C twice; a third is somebody who will
# not wait
_PRESSES_THAT_WAIT = 2


@contextmanager
def interrupts_between_steps() -> Iterator[Callable[[], None]]:
    """Yields a function that raises KeyboardInterrupt if Ctrl-C was pressed since the last call.

    In the middle of a step it would leave an engine in no state to go on from. A third Ctrl-C is
    raised at once. One that comes after the last call is raised at the end of the context. Where
    Ctrl-C means something else, or in another thread, nothing changes.
    """
    ours = (threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGINT) is signal.default_int_handler)
    if not ours:
        yield lambda: None
        return
    num_presses = 0

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal num_presses
        num_presses += 1
        if num_presses > _PRESSES_THAT_WAIT:
            signal.default_int_handler(number, frame)

    def check() -> None:
        nonlocal num_presses
        if num_presses:
            num_presses = 0
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, press)
    try:
        yield check
    finally:
        # from here on Ctrl-C is raised at once again; one that came before is not lost
        signal.signal(signal.SIGINT, signal.default_int_handler)
        check()
