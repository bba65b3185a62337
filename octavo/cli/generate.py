"""`octavo generate MODEL PROMPT`: one completion, streamed to standard output."""

import argparse
import sys
from typing import Any

from octavo.cli.flags import Commands, add_engine_flags, engine_args

_SAMPLING = (
    ("--temperature", float, "0 is greedy (default: the model's advice, else {otherwise})"),
    ("--top-p", float, "keep the most likely tokens up to this probability"),
    ("--top-k", int, "keep this many of the most likely tokens"),
    ("--min-p", float, "drop tokens less likely than this share of the most likely one"),
    ("--repetition-penalty", float, "above 1 discourages what was said"),
)


def add_parser(commands: Commands) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "generate", help="one completion on standard output, figures on standard error")
    parser.set_defaults(run=run)
    parser.add_argument("model", metavar="MODEL",
                        help="GGUF file, Hugging Face folder, alias or hub repo id")
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue; - reads stdin")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N",
                        help="most tokens to generate (default %(default)s)")
    parser.add_argument("--stop", action="append", metavar="TEXT",
                        help="ends the output (may be repeated)")
    parser.add_argument("--ignore-eos", action="store_true", help="go on after the end token")
    parser.add_argument("--quiet", action="store_true", help="no figures on standard error")
    add_sampling_flags(parser)
    add_engine_flags(parser)


def add_sampling_flags(parser: argparse.ArgumentParser, *, otherwise: str = "1") -> None:
    """How tokens are drawn. otherwise: the temperature where the model's makers advise nothing."""
    group = parser.add_argument_group("sampling")
    for flag, kind, text in _SAMPLING:
        group.add_argument(flag, type=kind, metavar="X",
                           help=text.replace("{otherwise}", otherwise))


def sampling_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling flags that were given."""
    names = [flag[2:].replace("-", "_") for flag, _, _ in _SAMPLING]
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def run(args: argparse.Namespace) -> int:
    """Prints the completion as it comes."""
    import asyncio

    return asyncio.run(_generate(args))


async def _generate(args: argparse.Namespace) -> int:
    import msgspec

    from octavo.cli.speed import Speed
    from octavo.engine.async_llm import AsyncLLM
    from octavo.engine.factory import resolve_args

    prompt = _from_stdin() if args.prompt == "-" else args.prompt
    config = resolve_args(engine_args(args)).config
    llm = AsyncLLM.from_config(config)
    try:
        await llm.wait_ready()
        params = msgspec.structs.replace(
            llm.get_default_sampling_params(), max_tokens=args.max_tokens, stop=args.stop,
            ignore_eos=args.ignore_eos, **sampling_fields(args))
        ids = llm.tokenizer.encode(prompt, parse_special=True)
        speed = Speed(max_tokens=params.max_tokens, max_model_len=config.model.max_model_len)
        said = False
        try:
            async for output in llm.generate({"prompt": prompt, "prompt_token_ids": ids}, params,
                                             "1", strict_max_tokens=False):
                for part in output.outputs:
                    sys.stdout.write(part.text)
                    sys.stdout.flush()
                    said = said or bool(part.text)
                speed.observe(output)
        except BaseException:
            if said:
                print()  # why the answer is half follows on a line of its own
            raise
        print()
        if not args.quiet:
            print(f"[{speed.line()}]", file=sys.stderr)
    finally:
        await llm.shutdown()
    return 0


def _from_stdin() -> str:
    from octavo.errors import InvalidRequestError

    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"the prompt on standard input is not valid UTF-8: {error.reason} at byte "
            f"{error.start}", param="prompt") from None
