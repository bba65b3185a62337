"""Standard input, output and error as the rest of the command line may expect them.

Knows no command. A program may be started with any of them closed, full, or in an encoding that
cannot write what a model says.
"""

import os
import sys
from io import TextIOWrapper


def prepare_streams() -> None:
    """Opens the null device for what is closed, and lets no character be an error."""
    # A file opened later must not become number 0, 1 or 2: others write there.
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (for good)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")


def drop_output() -> None:
    """Forgets what could not be written, so that the interpreter does not try again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def tell(line: str) -> None:
    """One line on standard error, if anybody can read it."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)
