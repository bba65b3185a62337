"""`octavo`: the command line. One file a subcommand; each imports what it needs when it runs.

Errors of the user are one line on stderr: status 2 for wrong usage, 1 for everything else. Nothing
is imported before main() can answer Ctrl-C.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from octavo.cli.parser import Parser

_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    try:
        return _main(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # also while something is still being imported
        from octavo.cli.streams import tell

        tell("octavo: interrupted")
        return _INTERRUPTED


def _main(argv: Sequence[str]) -> int:
    from octavo.cli.streams import drop_output, prepare_streams, tell

    prepare_streams()
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        drop_output()  # whoever read our output has gone: nothing more to say
        return 1
    except OSError as error:
        drop_output()
        where = "" if error.filename is None else f"{error.filename}: "
        tell(f"octavo: error: {where}{error.strerror or error}")
        return 1


def _run(argv: Sequence[str]) -> int:
    from octavo.cli.parser import spelled
    from octavo.cli.streams import tell

    args = _parse(argv)
    try:
        status: int = args.run(args)
        return status
    except Exception as error:
        from octavo.errors import OctavoError

        if not isinstance(error, OctavoError):
            raise  # a bug of ours: the traceback is wanted
        message = spelled(error.message, args, error.param)
        if getattr(args, "log_format", "text") == "json":
            import logging

            logging.getLogger("octavo").error("%s", message)
        else:
            tell(f"octavo: error: {message}")
        return 1


def build_parser() -> "Parser":
    """The parser of every command line there is; each subcommand sets `run`."""
    from octavo import __version__
    from octavo.cli import (
        bench,
        chat,
        collect_env,
        generate,
        info,
        pull,
        quantize,
        reproduce,
        run_batch,
        serve,
        top,
    )
    from octavo.cli import eval as evaluate
    from octavo.cli.parser import Parser

    parser = Parser(
        prog="octavo", description="LLM inference and serving with bitwise-invariant output.")
    parser.add_argument("--version", action="version", version=f"octavo {__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", required=True,
                                     metavar="COMMAND")
    for command in (serve, run_batch, chat, generate, pull, info, quantize, evaluate, bench,
                    reproduce, top, collect_env):
        command.add_parser(commands)
    return parser


def _parse(argv: Sequence[str]) -> "argparse.Namespace":
    parser = build_parser()
    for argument in argv:
        if not _is_text(argument):
            shown = ascii(argument.encode("utf-8", "surrogateescape"))[2:-1]
            parser.error(f"the argument '{shown[:80]}' is not valid UTF-8")
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.commands()[args.command].error(f"unrecognized arguments: {' '.join(unknown)}")
    return args


def _is_text(argument: str) -> bool:
    """What the shell gives as bytes that are no UTF-8 arrives as half surrogates."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
