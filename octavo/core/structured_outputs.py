"""StructuredOutputs: the form an output must have. Validated once, at construction.

Says what is wanted, as text; compiling it is octavo/grammar's business.
"""

import json
from typing import Any

import msgspec

from octavo.errors import InvalidRequestError

# Bounds of one request's grammar. A schema of 256 KiB compiles in about a second at worst; the
# longest real ones (whole API descriptions) have about 100 KiB.
MAX_GRAMMAR_BYTES = 1 << 18
MAX_CHOICES = 10_000
MAX_WHITESPACE_PATTERN_CHARS = 256

_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_FREE_OBJECT = '{"type":"object"}'


class StructuredOutputs(msgspec.Struct, omit_defaults=True, kw_only=True):
    """Exactly one of `json`, `regex`, `choice`, `grammar` and `json_object` is given.

    Attributes:
        json: a JSON Schema, as a dict (or bool) or as its text; kept as text.
        regex: a regular expression the whole output matches.
        choice: the output is one of these texts.
        grammar: a Lark grammar (its rule `start`), or one in the GBNF style (its rule `root`).
        json_object: any JSON object.
        whitespace_pattern: with JSON, the regex of white space between tokens; None means none
            at all, because small models can fill any context with it.
        field: the name errors give it, where it came under another one (`response_format`).

    Raises InvalidRequestError.
    """

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    whitespace_pattern: str | None = None
    field: str = "structured_outputs"

    def __post_init__(self) -> None:
        if self.json_object is False:
            self.json_object = None
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise self.error(f"has {' and '.join(given) or 'nothing'}: give exactly one of "
                             f"{', '.join(_KINDS)}")
        if self.json is not None:
            self.json = self._schema_text(self.json)
        elif self.choice is not None:
            self.choice = self._choices(self.choice)
        elif self.json_object is not None:
            if self.json_object is not True:
                raise self.error("json_object is not true or false")
        else:
            self._text(given[0], getattr(self, given[0]))
        if self.whitespace_pattern is not None:
            self._text("whitespace_pattern", self.whitespace_pattern)
            if len(self.whitespace_pattern) > MAX_WHITESPACE_PATTERN_CHARS:
                raise self.error("whitespace_pattern has more than "
                                 f"{MAX_WHITESPACE_PATTERN_CHARS} characters")

    @property
    def kind(self) -> str:
        """Which of the five is given; "json" for `json_object` too."""
        found = next(kind for kind in _KINDS if getattr(self, kind) is not None)
        return "json" if found == "json_object" else found

    @property
    def key(self) -> tuple[str, str, str]:
        """Equal for specs that mean the same: (kind, text, whitespace_pattern).

        The text is the schema, regex or grammar; for choices a JSON list.
        """
        if self.choice is not None:
            text = json.dumps(self.choice, ensure_ascii=False)
        elif self.json_object:
            text = _FREE_OBJECT
        else:
            text = str(self.json or self.regex or self.grammar or "")
        return self.kind, text, self.whitespace_pattern or ""

    def error(self, what: str) -> InvalidRequestError:
        """An error about this spec; `what` follows its name."""
        return InvalidRequestError(f"{self.field}: {what}", param=self.field)

    def _text(self, kind: str, value: object) -> str:
        if not isinstance(value, str):
            raise self.error(f"{kind} is a {type(value).__name__}: give text")
        if not value:
            raise self.error(f"{kind} is empty")
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise self.error(f"{kind} holds half of a surrogate pair") from None
        if size > MAX_GRAMMAR_BYTES:
            raise self.error(f"{kind} has {size} bytes, and may have {MAX_GRAMMAR_BYTES}: make "
                             "it simpler")
        return value

    def _schema_text(self, schema: object) -> str:
        try:
            if isinstance(schema, str):
                self._text("json", schema)
                schema = json.loads(schema)
            if schema is True:
                schema = {}
            if not isinstance(schema, dict):
                raise self.error("json is not a JSON Schema: give an object")
            text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        except RecursionError:
            raise self.error("json is nested too deeply") from None
        except (TypeError, ValueError) as error:
            raise self.error(f"json is not a JSON Schema ({error})") from None
        return self._text("json", text)

    def _choices(self, choices: object) -> list[str]:
        if not isinstance(choices, (list, tuple)) or not choices:
            raise self.error("choice is not a list of texts with at least one")
        if len(choices) > MAX_CHOICES:
            raise self.error(f"choice has {len(choices)} texts, and may have {MAX_CHOICES}")
        for text in choices:
            self._text("choice", text)
        size = sum(len(text.encode()) for text in choices)
        if size > MAX_GRAMMAR_BYTES:
            raise self.error(f"choice has {size} bytes, and may have {MAX_GRAMMAR_BYTES}")
        return list(choices)
