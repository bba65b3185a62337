"""`octavo chat [MODEL]`: a conversation in the terminal, streamed, with tokens a second."""

import argparse
import contextlib
import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

from octavo.cli.flags import (
    DEFAULT_MODEL,
    Commands,
    add_chat_template_flag,
    add_engine_flags,
    chat_template_of,
    engine_args,
)
from octavo.cli.generate import add_sampling_flags, sampling_fields

if TYPE_CHECKING:
    import asyncio

    from rich.console import Console

    from octavo.core.sampling_params import SamplingParams
    from octavo.engine.async_llm import AsyncLLM

_HELP = """\
/help            this text
/clear           forget the conversation
/system TEXT     set the system message and start over; without TEXT: the model's own
/retry           answer the last message once more
/set NAME VALUE  a sampling option, such as /set temperature 0.7; none as the value: as it was
/set NAME        shows it; /set alone shows them all
/exit            leave (Ctrl-D too); Ctrl-C stops an answer
A line that ends in \\ goes on in the next one."""
_WITHOUT_TEXT = ("help", "clear", "retry", "exit", "quit")
# of models whose makers advise nothing, and of answers: as on the page
_PLAIN_SAMPLING = {"temperature": 0.6, "min_p": 0.05}
_ADVICE = {"temperature", "top_k", "top_p", "min_p"}
_MAX_TOKENS = 1024
_SETTABLE = {
    "temperature": float, "top_p": float, "top_k": int, "min_p": float, "max_tokens": int,
    "repetition_penalty": float, "presence_penalty": float, "frequency_penalty": float,
    "seed": int,
}


def add_parser(commands: Commands) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser("chat", help="talk to a model in the terminal")
    parser.set_defaults(run=run)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL",
                        help="GGUF file, Hugging Face folder, alias or hub repo id "
                        "(default %(default)s)")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--max-tokens", type=int, default=_MAX_TOKENS, metavar="N",
                        help="most tokens of an answer (default %(default)s)")
    add_chat_template_flag(parser)
    add_sampling_flags(parser, otherwise="0.6 and min-p 0.05")
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Talks until /exit or the end of input."""
    import asyncio

    import msgspec
    from rich.console import Console

    from octavo.config import ServerSection
    from octavo.engine.async_llm import AsyncLLM
    from octavo.engine.factory import resolve_args

    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a bad byte is no reason to end a conversation
    console = Console(highlight=False)
    section = ServerSection(chat_template=chat_template_of(args))
    config = resolve_args(engine_args(args), server=section).config
    with asyncio.Runner() as runner:
        async def load() -> AsyncLLM:
            llm = AsyncLLM.from_config(config)
            try:
                await llm.wait_ready()
            except BaseException:
                await llm.shutdown()
                raise
            return llm

        with console.status("loading ..."):
            llm = runner.run(load())
        try:
            plain = {} if _ADVICE & llm.sampling_advice.keys() else _PLAIN_SAMPLING
            params = msgspec.structs.replace(
                llm.get_default_sampling_params(), max_tokens=args.max_tokens, seed=args.seed,
                **(plain | sampling_fields(args)))
            _Chat(runner, llm, console, params=params, system=args.system).talk()
        finally:
            runner.run(llm.shutdown())
    return 0


class _Chat:
    """A conversation. Between answers the event loop stands still, and so does the engine."""

    def __init__(self, runner: "asyncio.Runner", llm: "AsyncLLM", console: "Console", *,
                 params: "SamplingParams", system: str | None) -> None:
        self._runner = runner
        self._llm = llm
        self._console = console
        self._params = self._first_params = params
        self._system = system
        self._messages: list[dict[str, str]] = []
        self._num_requests = 0

    def talk(self) -> None:
        """Reads and answers until the end."""
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 (gives input() line editing and history)
        name = self._llm.config.model.served_model_names[0]
        self._console.print(f"[bold]{name}[/bold] [dim](/help, /exit)[/dim]")
        while True:
            try:
                text = self._read()
            except EOFError:
                self._console.print()
                return
            except KeyboardInterrupt:
                self._console.print("[dim](/exit leaves)[/dim]")
                continue
            if text in ("/exit", "/quit"):
                return
            if text.startswith("/"):
                self._command(*text[1:].partition(" ")[::2])
            elif text:
                self._messages.append({"role": "user", "content": text})
                self._answer()

    def _read(self) -> str:
        prompt = "> " if sys.stdin.isatty() else ""
        lines = [input(prompt)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(input(". " if prompt else ""))
        return "\n".join(lines).strip()

    def _command(self, name: str, rest: str) -> None:
        rest = rest.strip()
        if name in _WITHOUT_TEXT and rest:
            self._note(f"/{name} takes nothing after it: /{name} alone, or a message without /")
            return
        match name:
            case "help":
                self._console.print(_HELP, markup=False)
            case "clear":
                self._messages.clear()
                self._note("the conversation is forgotten")
            case "system":
                self._system = rest or None
                self._messages.clear()
                self._note("a new conversation begins")
            case "retry":
                while self._messages and self._messages[-1]["role"] == "assistant":
                    self._messages.pop()
                if self._messages:
                    self._answer()
                else:
                    self._note("there is nothing to retry")
            case "set":
                self._set(rest)
            case _:
                self._note(f"unknown command /{name}: /help lists them")

    def _set(self, rest: str) -> None:
        import msgspec

        from octavo.errors import InvalidRequestError

        name, _, value = rest.partition(" ")
        if not name:
            shown = (f"{n} {getattr(self._params, n)}" for n in _SETTABLE)
            self._note(", ".join(shown))
            return
        if name not in _SETTABLE:
            self._note(f"there is no option {name}: {', '.join(_SETTABLE)}")
            return
        value = value.strip()
        try:
            if value.lower() == "none":
                changed: dict[str, Any] = {name: getattr(self._first_params, name)}
            elif value:
                changed = {name: _SETTABLE[name](value)}
            else:
                changed = {}
            self._params = msgspec.structs.replace(self._params, **changed)
            self._note(f"{name} {getattr(self._params, name)}")
        except ValueError:
            self._note(f"{value!r} is not a number")
        except InvalidRequestError as error:
            self._note(error.message)

    def _answer(self) -> None:
        from octavo.errors import ContextLengthError, InvalidRequestError

        said: list[str] = []
        try:
            self._runner.run(self._stream(said))
        except KeyboardInterrupt:
            self._console.print()
            self._note("stopped")
        except ContextLengthError:
            self._messages.pop()
            self._note("the conversation does not fit the model's context any more: /clear")
            return
        except InvalidRequestError as error:
            self._messages.pop()
            self._note(error.message)
            return
        self._messages.append({"role": "assistant", "content": "".join(said)})

    async def _stream(self, said: list[str]) -> None:
        from octavo.cli.speed import Speed

        system = [] if self._system is None else [{"role": "system", "content": self._system}]
        prompt = await self._llm.chat_prompt([*system, *self._messages])
        self._num_requests += 1
        speed = Speed(max_tokens=self._params.max_tokens,
                      max_model_len=self._llm.config.model.max_model_len)
        async for output in self._llm.generate(prompt, self._params, str(self._num_requests),
                                               strict_max_tokens=False):
            for part in output.outputs:
                said.append(part.text)
                self._console.out(part.text, end="", style="cyan", highlight=False)
            self._console.file.flush()
            speed.observe(output)
        self._console.print()
        self._note(speed.line())

    def _note(self, text: str) -> None:
        self._console.print(f"[{text}]", style="dim", markup=False, soft_wrap=True)
