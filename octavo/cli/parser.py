"""The argument parser of `octavo`: usage errors in two lines, and messages in the flags' spelling.

argparse only: nothing of the engine is imported until a command runs.
"""

import argparse
import re
from typing import Any, NoReturn

# arguments without a flag: words like these in a message are just words
_POSITIONAL = frozenset({"model", "prompt", "name", "command"})


class Parser(argparse.ArgumentParser):
    """Says what is wrong, then how the command is called: the list of all options is --help's."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n"
                     f"usage: {self._synopsis()}; see {self.prog} --help\n")

    def commands(self) -> dict[str, "Parser"]:
        """The parsers of the subcommands, by name; empty where there are none."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return dict(action.choices)
        return {}

    def _synopsis(self) -> str:
        words = [self.prog]
        for action in self._get_positional_actions():
            word = str(action.metavar or action.dest)
            words.append(f"[{word}]" if action.nargs == "?" else word)
        return " ".join([*words, "[options]"])


def spelled(message: str, args: argparse.Namespace, param: str | None = None) -> str:
    """A message about arguments, with their names as the user types them.

    max_num_seqs becomes --max-num-seqs; a name of one word only where the message begins with it
    (and `param` says that it is the argument's).
    """
    given: dict[str, Any] = vars(args)
    if param in given and param not in _POSITIONAL and message.startswith(f"{param} is "):
        message = f"--{param.replace('_', '-')}{message[len(param):]}"

    def flag(found: re.Match[str]) -> str:
        name = found[0]
        return "--" + name.replace("_", "-") if name in given else name

    return re.sub(r"(?<![\w/.-])[a-z]+(?:_[a-z]+)+(?![\w/-]|\.\w)", flag, message)
