"""`octavo`: the command line. One file a subcommand; each imports what it needs when it runs.

Errors of the user are one line on stderr: status 2 for wrong usage, 1 for everything else.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from octavo.cli import bench, chat, collect_env, generate, info, pull, serve

_COMMANDS = (serve, chat, generate, pull, info, bench, collect_env)
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("octavo: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has gone: nothing more to say, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except Exception as error:
        from octavo.errors import OctavoError

        if not isinstance(error, OctavoError):
            raise  # a bug of ours: the traceback is wanted
        print(f"octavo: error: {error.message}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    from octavo import __version__

    parser = argparse.ArgumentParser(
        prog="octavo", description="LLM inference and serving with bitwise-invariant output.")
    parser.add_argument("--version", action="version", version=f"octavo {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True,
                                     metavar="COMMAND")
    for command in _COMMANDS:
        command.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
