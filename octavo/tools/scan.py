"""Reads one call's JSON while it is still being written. Text in, pieces out; keeps no more than it
must. Knows nothing of markers around the call.
"""

import json
import re

_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\],\s]')
_ARGUMENT_KEYS = ("arguments", "parameters")
_MAX_KEY_CHARS = 256


class JsonValue:
    """Finds the end of one JSON value. It is not validated: a grammar has done that."""

    __slots__ = ("_depth", "_escaped", "_in_string", "is_done")

    def __init__(self) -> None:
        self.is_done = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, at: int) -> int:
        """The place behind what belongs to the value, which begins at the first text fed."""
        end = len(text)
        while at < end and not self.is_done:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            match = (_IN_STRING if self._in_string else _OUTSIDE).search(text, at)
            if match is None:
                return end
            at = match.end()
            char = match[0]
            if self._in_string:
                self._escaped = char == "\\"
                self._in_string = self._escaped
                self.is_done = not self._in_string and self._depth == 0
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif self._depth == 0:  # behind a number, true, false or null
                self.is_done = True
                return match.start()
            elif char in "}]":
                self._depth -= 1
                self.is_done = self._depth == 0
        return at


class CallObject:
    """One object {"name": ..., "arguments": ...}: its name as soon as it is known, its arguments as
    they come.

    name: known once the key's value is complete. arguments: text not taken yet (take()).
    failed: this is no such object. is_done: its last brace has come.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.is_done = False
        self.failed = False
        self._arguments = ""
        self._has_arguments = False
        self._quoted = False  # the arguments are JSON inside of a JSON string
        self._state = "start"
        self._key = ""
        self._value = JsonValue()
        self._text = ""  # of the key or value being read

    def feed(self, text: str) -> int:
        """How many characters belong to the object; the rest is behind it (or it has failed)."""
        at = 0
        while at < len(text) and not (self.is_done or self.failed):
            at = getattr(self, f"_{self._state}")(text, at)
        return at

    def take(self) -> str:
        """The arguments that came since the last take; nothing before the name is known."""
        if self.name is None or (self._quoted and not self.is_done):
            return ""
        taken, self._arguments = self._arguments, ""
        if not self.is_done:
            return taken
        if self._quoted:
            self._quoted = False
            return _unquoted(taken)
        if not self._has_arguments:
            self._has_arguments = True
            return "{}"
        return taken

    def _start(self, text: str, at: int) -> int:
        self.failed = text[at] != "{"
        self._state = "between"
        return at + 1

    def _between(self, text: str, at: int) -> int:
        """Before a key, or at the end."""
        char = text[at]
        if char == '"':
            self._state, self._text = "in_key", ""
        elif char == "}":
            self.is_done = self.name is not None
            self.failed = not self.is_done
        elif char != "," and not char.isspace():
            self.failed = True
        return at + 1

    def _in_key(self, text: str, at: int) -> int:
        end = text.find('"', at)
        self._text += text[at:] if end < 0 else text[at:end]
        if len(self._text) > _MAX_KEY_CHARS:
            self.failed = True
        if end < 0:
            return len(text)
        self._key, self._state = self._text, "colon"
        return end + 1

    def _colon(self, text: str, at: int) -> int:
        if text[at] == ":":
            self._state = "before_value"
        elif not text[at].isspace():
            self.failed = True
        return at + 1

    def _before_value(self, text: str, at: int) -> int:
        if text[at].isspace():
            return at + 1
        self._value, self._text, self._state = JsonValue(), "", "in_value"
        if self._key in _ARGUMENT_KEYS:
            self._quoted = text[at] == '"'
            self._has_arguments = True
        return at

    def _in_value(self, text: str, at: int) -> int:
        end = self._value.feed(text, at)
        if self._key in _ARGUMENT_KEYS:
            self._arguments += text[at:end]
        elif self._key == "name":
            self._text += text[at:end]
        if self._value.is_done:
            self._state = "between"
            if self._key == "name":
                self.name = _string(self._text)
                self.failed = self.name is None
        return end


def _string(text: str) -> str | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, str) and value else None


def _unquoted(text: str) -> str:
    found = _string(text)
    return text if found is None else found
