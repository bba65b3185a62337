"""`octavo run-batch MODEL -i IN.jsonl -o OUT.jsonl`: an OpenAI batch file, answered offline."""

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from octavo.cli.flags import (
    DEFAULT_MODEL,
    Commands,
    add_batch_flags,
    add_chat_template_flag,
    add_engine_flags,
    chat_template_of,
    engine_args,
)

if TYPE_CHECKING:
    from octavo.config import EngineConfig


def add_parser(commands: Commands) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser("run-batch", help="answer an OpenAI batch file without a server")
    parser.set_defaults(run=run)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL",
                        help="GGUF file, Hugging Face folder, alias or hub repo id "
                        "(default %(default)s)")
    parser.add_argument("-i", "--input-file", required=True, metavar="FILE",
                        help="one request a line: custom_id, method, url, body; - reads stdin")
    parser.add_argument("-o", "--output-file", required=True, metavar="FILE",
                        help="one answer a line, in the order in which they end; - is stdout")
    parser.add_argument("--strict-params", action="store_true",
                        help="refuse request fields that are unknown, instead of ignoring them")
    add_chat_template_flag(parser)
    add_engine_flags(parser)
    add_batch_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Answers every line; 1 if any line failed."""
    import asyncio

    from octavo.config import ServerSection
    from octavo.engine.factory import resolve_args

    server = ServerSection(chat_template=chat_template_of(args), strict_params=args.strict_params)
    with _opened(args.input_file, "rb") as lines, _opened(args.output_file, "wb") as output:
        config = resolve_args(engine_args(args), server=server).config
        good, bad = asyncio.run(_run(config, lines, output))
    print(f"{good + bad} requests: {good} answered, {bad} failed", file=sys.stderr)
    return 1 if bad else 0


@contextlib.contextmanager
def _opened(path: str, mode: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer if mode == "rb" else sys.stdout.buffer
        return
    with open(path, mode) as file:
        yield file  # type: ignore[misc]


async def _run(config: "EngineConfig", lines: BinaryIO, output: BinaryIO) -> tuple[int, int]:
    import msgspec

    from octavo.engine.async_llm import AsyncLLM
    from octavo.server.app import create_app
    from octavo.server.batch import run_lines

    llm = AsyncLLM.from_config(config)
    app = create_app(llm, config.server)
    good = bad = 0
    async with app.router.lifespan_context(app):
        await llm.wait_ready()
        # some wait, so that the engine's batch stays full
        concurrency = 2 * config.scheduler.max_num_seqs
        async for result in run_lines(app, lines, concurrency=concurrency):
            output.write(msgspec.json.encode(result) + b"\n")
            good, bad = good + result.succeeded, bad + (not result.succeeded)
    output.flush()
    return good, bad
