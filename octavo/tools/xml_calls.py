"""Calls written as XML: one element a parameter, texts as they are and other values as JSON.

    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>

Writing and reading; the reader has the methods of scan.CallObject. Knows nothing of markers around
the call.
"""

import json
from collections.abc import Mapping
from typing import Any

from octavo.tools.parameters import TYPES, Kinds, types_of

FUNCTION_OPEN = "<function="
FUNCTION_CLOSE = "</function>"
PARAMETER_OPEN = "<parameter="
PARAMETER_CLOSE = "</parameter>"
_MAX_NAME_CHARS = 256
# as some models write them
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


def write_xml(name: str, arguments: Mapping[str, Any]) -> str:
    """The text of one call."""
    values = {key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
              for key, value in arguments.items()}
    return "".join([f"{FUNCTION_OPEN}{name}>\n",
                    *(f"{PARAMETER_OPEN}{key}>\n{text}\n{PARAMETER_CLOSE}\n"
                      for key, text in values.items()), FUNCTION_CLOSE])


class XmlCall:
    """One call: its name as soon as it is known, its arguments, as JSON, as they come. Values that
    can be nothing but texts come in pieces, others when they are complete.

    name, is_done, failed, feed, take: as CallObject's.
    """

    def __init__(self, kinds: Kinds) -> None:
        self.name: str | None = None
        self.is_done = False
        self.failed = False
        self._kinds = kinds
        self._state = "tag"
        self._text = ""  # of the tag, name, key or value being read
        self._key_kinds = TYPES
        self._is_first = True  # no parameter has come
        self._has_begun = False  # some of the value has been told
        self._arguments = ""

    def feed(self, text: str) -> int:
        """How many characters belong to the call; the rest is behind it (or it has failed)."""
        at = 0
        while at < len(text) and not (self.is_done or self.failed):
            if self._state == "value":
                at = self._value(text, at)
            else:
                getattr(self, f"_{self._state}")(text[at])
                at += 1
        return at

    def take(self) -> str:
        """The arguments that came since the last take."""
        taken, self._arguments = self._arguments, ""
        return taken

    def _tag(self, char: str) -> None:
        """What comes next."""
        if not self._text and char.isspace() and self.name is not None:
            return
        self._text += char
        tags = (FUNCTION_OPEN,) if self.name is None else (PARAMETER_OPEN, FUNCTION_CLOSE)
        if self._text not in tags:
            self.failed = not any(tag.startswith(self._text) for tag in tags)
            return
        if self._text == FUNCTION_CLOSE:
            self.is_done = True
            self._arguments += "{}" if self._is_first else "}"
        self._state = "name" if self._text == FUNCTION_OPEN else "key"
        self._text = ""

    def _name(self, char: str) -> None:
        if char == ">" and self._text:
            self.name, self._text, self._state = self._text, "", "tag"
        else:
            self._add_to_name(char)

    def _key(self, char: str) -> None:
        if char != ">":
            self._add_to_name(char)
            return
        key = json.dumps(self._text, ensure_ascii=False)
        self._arguments += ("{" if self._is_first else ", ") + key + ": "
        self._key_kinds = self._kinds.get(self.name or "", {}).get(self._text, TYPES)
        self._is_first = self._has_begun = False
        self._text, self._state = "", "value"

    def _add_to_name(self, char: str) -> None:
        self._text += char
        self.failed = char in "<>\n" or len(self._text) > _MAX_NAME_CHARS

    def _value(self, text: str, at: int) -> int:
        """Up to the closing tag; one line break on each side of the value is markup."""
        held = len(self._text)
        self._text += text[at:]
        end = self._text.find(PARAMETER_CLOSE)
        is_text = self._key_kinds == {"string"}
        if end < 0:
            if is_text:
                self._tell(len(self._text) - _num_held(self._text))
            return len(text)
        behind = at + end + len(PARAMETER_CLOSE) - held
        value = self._text[:end].removesuffix("\n")
        if is_text:
            self._tell(len(value), is_last=True)
        else:
            self._arguments += json_value(value.removeprefix("\n"), self._key_kinds)
        self._text, self._state = "", "tag"
        return behind

    def _tell(self, size: int, *, is_last: bool = False) -> None:
        """This much of a text's value."""
        piece, self._text = self._text[:size], self._text[size:]
        if not self._has_begun and (piece or is_last):
            self._has_begun = True
            piece = piece.removeprefix("\n")
            self._arguments += '"'
        self._arguments += json.dumps(piece, ensure_ascii=False)[1:-1] + ('"' if is_last else "")


def json_value(text: str, kinds: frozenset[str]) -> str:
    """A written value as JSON: what it reads as, where that is of one of these types, else a
    string."""
    bare = text.strip()
    for spelled in (bare, _PYTHON_WORDS.get(bare)):
        if spelled is None:
            continue
        try:
            types = types_of(json.loads(spelled, parse_constant=_refuse))
        except (ValueError, OverflowError, RecursionError):
            continue
        # a quoted text is a text with quotes
        if types & kinds and "string" not in types:
            return spelled
    return json.dumps(text, ensure_ascii=False)


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _num_held(text: str) -> int:
    """Characters at the end that may be the beginning of what ends a value."""
    for marker in ("\n" + PARAMETER_CLOSE, PARAMETER_CLOSE):
        for size in range(min(len(marker) - 1, len(text)), 0, -1):
            if text.endswith(marker[:size]):
                return size
    return 0
