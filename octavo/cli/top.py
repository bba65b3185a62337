"""`octavo top`: a server's engine at work, in the terminal. q or Ctrl-C leaves."""

import argparse
import contextlib
import queue
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from octavo.cli.flags import Commands

if TYPE_CHECKING:
    from rich.console import Console

    from octavo.cli.top_source import TopSource
    from octavo.cli.top_view import TopView

DEFAULT_URL = "http://127.0.0.1:8000"
# so often the keyboard is looked at, and the screen drawn when there is news
_FRAME_S = 0.1
# how many steps --once waits for, and how long, if requests run
_ONCE_STEPS = 16
_ONCE_STEPS_S = 1.0
_ONCE_SIZE = (80, 24)  # of a frame that goes to no terminal


def add_parser(commands: Commands) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser("top", help="watch a server's engine at work in the terminal",
                                 description="Watch a server's engine at work: the batch of each "
                                 "step, the KV blocks, the prefix tree, the requests. q leaves.")
    parser.set_defaults(run=run)
    parser.add_argument("--url", default=DEFAULT_URL, metavar="URL",
                        help="the server's (default %(default)s)")
    parser.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    parser.add_argument("--once", action="store_true", help="print one frame and end")


def run(args: argparse.Namespace) -> int:
    """Shows frames until q, Ctrl-C, or an error that trying again would not mend."""
    from rich.console import Console

    from octavo.cli.top_source import TopSource
    from octavo.cli.top_view import TopView
    from octavo.errors import ConfigError

    console = Console(highlight=False)
    source = TopSource(args.url, args.api_key, keep_trying=not args.once)
    if not args.once and not (console.is_terminal and sys.stdin.isatty()):
        raise ConfigError("octavo top draws on a terminal, and this is none: use --once",
                          param="once")
    view = TopView(source.url)
    source.start()
    try:
        if args.once:
            return _show_once(console, source, view)
        return _show(console, source, view)
    finally:
        source.close()


def _show_once(console: "Console", source: "TopSource", view: "TopView") -> int:
    import time

    from octavo.cli.top_screen import screen

    deadline = None
    while deadline is None or time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
            timeout = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            view.update(*source.news.get(timeout=timeout))
        if view.state is not None:
            if len(view.steps) >= _ONCE_STEPS or not any(view.counts()):
                break
            deadline = deadline or time.monotonic() + _ONCE_STEPS_S
    width, height = console.size if console.is_terminal else _ONCE_SIZE
    for line in screen(view, width, height - 1, ascii_only=console.options.ascii_only):
        console.print(line, no_wrap=True, overflow="crop", crop=True, soft_wrap=False)
    return 0


def _show(console: "Console", source: "TopSource", view: "TopView") -> int:
    from rich.console import Group
    from rich.live import Live

    from octavo.cli.top_screen import screen

    def frame() -> Group:
        width, height = console.size
        return Group(*screen(view, width, height, ascii_only=console.options.ascii_only))

    first = source.news.get()  # an error is told before the screen is taken
    view.update(*first)
    with _keys() as has_quit, Live(frame(), console=console, screen=True, auto_refresh=False,
                                   vertical_overflow="crop") as live:
        while not has_quit(_FRAME_S):
            with contextlib.suppress(queue.Empty):
                while True:
                    view.update(*source.news.get_nowait())
            live.update(frame(), refresh=True)
    return 0


@contextlib.contextmanager
def _keys() -> "Iterator[_HasQuit]":
    """Keys without the return key, not shown; the terminal is put back whatever comes."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield _HasQuit(fd)
    except KeyboardInterrupt:
        pass  # how one leaves a program like this
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


class _HasQuit:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __call__(self, timeout_s: float) -> bool:
        """Waits that long for keys; whether q was among them, or the terminal is gone."""
        import os
        import select

        if not select.select([self._fd], [], [], timeout_s)[0]:
            return False
        keys = os.read(self._fd, 64)
        return not keys or b"q" in keys.lower()
