"""`octavo pull NAME`: fetches a model into the cache."""

import argparse

from octavo.cli.flags import Commands


def add_parser(commands: Commands) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser("pull", help="fetch a model into the cache")
    parser.set_defaults(run=run)
    parser.add_argument("name", metavar="NAME", help="alias, or with the extra hf a hub repo id")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    """Prints the model's path. A file that is there already is read and checked."""
    from octavo.weights.hub import resolve

    print(resolve(args.name, progress=not args.quiet, verify=True))
    return 0
