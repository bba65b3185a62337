"""Calls written as Python: NAME(KEY=VALUE, KEY=VALUE), values as literals.

Writing and reading; the reader has the methods of scan.CallObject. Knows nothing of the list around
the calls.
"""

import ast
import json
from collections.abc import Mapping
from typing import Any

_MAX_NAME_CHARS = 256
_WORDS = {True: "True", False: "False", None: "None"}


def write_python(name: str, arguments: Mapping[str, Any]) -> str:
    """The text of one call."""
    return f"{name}({', '.join(f'{key}={literal(value)}' for key, value in arguments.items())})"


def literal(value: Any) -> str:
    """A JSON value as a Python literal."""
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    return json.dumps(value, ensure_ascii=False)


class PythonCall:
    """One call: its name as soon as it is known, its arguments, as JSON, value by value.

    name, is_done, failed, feed, take: as CallObject's.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.is_done = False
        self.failed = False
        self._state = "name"
        self._text = ""  # of the name, key or value being read
        self._is_first = True  # no argument has come
        self._quote = ""
        self._escaped = False
        self._depth = 0
        self._arguments = ""

    def feed(self, text: str) -> int:
        """How many characters belong to the call; the rest is behind it (or it has failed)."""
        at = 0
        while at < len(text) and not (self.is_done or self.failed):
            getattr(self, f"_{self._state}")(text[at])
            at += 1
        return at

    def take(self) -> str:
        """The arguments that came since the last take."""
        taken, self._arguments = self._arguments, ""
        return taken

    def _name(self, char: str) -> None:
        if char == "(" and self._text:
            self.name, self._text, self._state = self._text, "", "key"
        else:
            self._text += char
            self.failed = (not (char.isalnum() or char in "_.-")
                           or len(self._text) > _MAX_NAME_CHARS)

    def _key(self, char: str) -> None:
        if char == "=" and self._text:
            key = json.dumps(self._text.rstrip(), ensure_ascii=False)
            self._arguments += ("{" if self._is_first else ", ") + key + ": "
            self._text, self._state, self._is_first = "", "value", False
        elif char == ")" and not self._text:
            self._end()
        elif self._text or not (char.isspace() or char == ","):
            self._text += char
            self.failed = char in "()[]{},'\"=" or len(self._text) > _MAX_NAME_CHARS

    def _value(self, char: str) -> None:
        if self._quote:
            if self._escaped or char == "\\":
                self._escaped = not self._escaped
            elif char == self._quote:
                self._quote = ""
        elif char in "'\"":
            self._quote = char
        elif char in "([{":
            self._depth += 1
        elif char in ")]}" and self._depth:
            self._depth -= 1
        elif char in ",)" and not self._depth:
            self._arguments += json_text(self._text.strip())
            self._text, self._state = "", "key"
            if char == ")":
                self._end()
            return
        self._text += char

    def _end(self) -> None:
        self.is_done = True
        self._arguments += "{}" if self._is_first else "}"


def json_text(text: str) -> str:
    """A literal as JSON; what is none, as a string."""
    try:
        json.loads(text, parse_constant=_refuse)
        return text
    except (ValueError, RecursionError):
        pass
    try:
        return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> Any:
    raise ValueError(constant)
