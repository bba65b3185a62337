"""Grammars by llguidance: JSON Schema, regex, choices and Lark grammars over a tokenizer.json.

Knows neither requests nor schedules. Unsupported schema keywords are refused, never ignored.
"""

import functools
import json
import re
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from octavo.core.json_schema import UnsupportedSchemaError, enforceable
from octavo.core.structured_outputs import StructuredOutputs
from octavo.errors import OctavoError
from octavo.grammar.backend import MaskRow, MatcherState

# Bounds on what one grammar may cost, in llguidance's units. Fuel is deterministic: a grammar
# hits a bound at the same token in every run. 1M of initial fuel is about 20 ms; 200k a step 14 ms;
# 50k lexer states of 1 to 2 KiB keep one request below 100 MiB.
_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000, step_max_items=50_000,
    max_items_in_row=2_000, max_lexer_states=50_000, max_grammar_size=500_000,
    verbose_errors=False,
)
_MAX_ERROR_CHARS = 300
_NOTHING = ("no text fits the grammar: it only points back to itself before anything is written; "
            "give it an alternative that ends")
# Sets of tokens that are looked up at once where the grammar allows all of a pattern, instead of
# one after another; each token belongs to the first pattern that it fits, and masks are the same
# whatever the patterns. Text of at most so many characters, as strings of JSON hold it, and what
# words, names and addresses are made of. Finer steps cost more in tests than they save in tokens.
_TEXT = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [r"[\x20\x0A\x0D\x09]+", "[a-zA-Z0-9]{1,5}", "[a-zA-Z0-9]{1,10}",
           *(f"{_TEXT}{{1,{length}}}" for length in (5, 10, 15, 20, 30)), f"{_TEXT}+"]


class LLGuidanceBackend:
    """Compiles for one tokenizer.

    tokenizer_json: text of a tokenizer.json. vocab_size: ids of the model, at least those of the
    tokenizer; more are never allowed. Building takes about half a second for 49k ids, with the
    interpreter lock held. Raises OctavoError for a tokenizer llguidance cannot read.
    """

    def __init__(self, tokenizer_json: str, *, vocab_size: int,
                 eos_token_ids: Sequence[int]) -> None:
        self.eos_token_ids = tuple(eos_token_ids)
        self.vocab_size = vocab_size
        try:
            self._tokenizer = LLTokenizer(
                tokenizer_json, n_vocab=vocab_size, eos_token=list(eos_token_ids),
                slices=_SLICES)
        except ValueError as error:
            raise OctavoError("structured output does not work with this model's tokenizer: "
                              f"{_one_line(str(error))}") from None

    def compile(self, spec: StructuredOutputs) -> "LLGuidanceMatcher":
        """See the seam. The interpreter lock is free meanwhile."""
        matcher = LLMatcher(self._tokenizer, grammar_text(spec), limits=_LIMITS, log_level=0)
        if matcher.is_error():
            raise spec.error(_reason(spec.kind, matcher.get_error()))
        return LLGuidanceMatcher(matcher, spec)


class LLGuidanceMatcher:
    """See the seam."""

    # The engine fills one row again and again, and NumPy makes objects to tell its address. The
    # pair is replaced as a whole: other threads compile meanwhile.
    _last_row: tuple[MaskRow | None, int] = (None, 0)

    def __init__(self, inner: LLMatcher, spec: StructuredOutputs) -> None:
        self._inner = inner
        self._spec = spec

    def accept(self, token_ids: Sequence[int]) -> None:
        """See the seam."""
        if len(token_ids) == 1:
            fits = self._inner.consume_token(token_ids[0])
        else:
            fits = self._inner.consume_tokens(list(token_ids))
        if not fits:
            self._fail()

    def rollback(self, num_tokens: int) -> None:
        """See the seam."""
        if not self._inner.rollback(num_tokens):
            self._fail()

    def fill_mask(self, row: MaskRow) -> None:
        """See the seam."""
        known, address = LLGuidanceMatcher._last_row
        if known is not row:
            address = row.ctypes.data
            LLGuidanceMatcher._last_row = row, address
        self._inner.unsafe_compute_mask_ptr(address, row.nbytes)
        if self._inner.is_error():
            self._fail()

    def state(self) -> MatcherState:
        """See the seam."""
        if self._inner.is_stopped():
            return MatcherState.COMPLETE
        return MatcherState.ACCEPTING if self._inner.is_accepting() else MatcherState.OPEN

    def forced_tokens(self) -> list[int]:
        """See the seam."""
        return self._inner.compute_ff_tokens()

    def copy(self) -> "LLGuidanceMatcher":
        """See the seam."""
        return LLGuidanceMatcher(self._inner.deep_copy(), self._spec)

    def _fail(self) -> None:
        if _cannot_begin(self._inner):
            raise self._spec.error(_NOTHING)
        reason = _one_line(self._inner.get_error())
        raise self._spec.error(f"the grammar cannot be followed any further ({reason})")


def refusal(spec: StructuredOutputs) -> str | None:
    """Why llguidance refuses a grammar, whatever the tokenizer; None if it does not.

    Special tokens that a Lark grammar names are taken on trust. Takes from a millisecond to, for
    grammars made to hurt, for ever: run it where it can be stopped (checker.py).
    """
    try:
        grammar = grammar_text(spec)
    except OctavoError as error:
        return error.message.removeprefix(f"{spec.field}: ")
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=_LIMITS)
    if is_error:
        return _reason(spec.kind, messages[0])
    if not (spec.kind == "grammar" or (spec.kind == "json" and '"$ref"' in spec.key[1])):
        return None  # nothing in it points back to itself
    matcher = LLMatcher(_byte_tokenizer(), grammar, limits=_LIMITS, log_level=0)
    if not matcher.is_error():  # else it names tokens that bytes do not have
        matcher.compute_bitmask()
    return _NOTHING if _cannot_begin(matcher) else None


@functools.cache
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer("byte")


def _cannot_begin(matcher: LLMatcher) -> bool:
    """Whether llguidance found, in its first mask, that no text fits the grammar."""
    return matcher.is_error() and "NoExtensionBias" in matcher.get_error()


def grammar_text(spec: StructuredOutputs) -> str:
    """The spec as llguidance reads it. Raises InvalidRequestError."""
    kind, text, whitespace = spec.key
    try:
        if kind == "json":
            options: Any = ({"whitespace_pattern": whitespace} if whitespace
                            else {"whitespace_flexible": False})
            schema = json.dumps(enforceable(json.loads(text)), ensure_ascii=False)
            return LLMatcher.grammar_from_json_schema(schema, defaults=options)
        if kind == "regex":
            return LLMatcher.grammar_from_regex(text)
        if kind == "choice":
            choices = " | ".join(map(_lark_text, json.loads(text)))
            return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {choices}\n")
        return LLMatcher.grammar_from_lark(any_to_lark(text))
    except UnsupportedSchemaError as error:
        raise spec.error(str(error)) from None
    except Exception as error:  # of a converter: whatever it is, the text is what it chokes on
        raise spec.error(_reason(kind, str(error))) from None


def _lark_text(text: str) -> str:
    """A literal of Lark: as in JSON, but that no control character may stand for itself."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


_SOURCE_LINE = re.compile(r"^ *\d+ \| .*$", re.MULTILINE)
_UNIMPLEMENTED = re.compile(r'Unimplemented keys: \[(.*?)\]')


def _reason(kind: str, error: str) -> str:
    """llguidance's words for the user: one line that names the keyword."""
    error = _SOURCE_LINE.sub("", error)  # what the user wrote is no part of what is wrong with it
    unsupported = _UNIMPLEMENTED.search(error)
    if unsupported is not None:
        return f"the schema uses {unsupported[1]}, which is not supported"
    if "coerce_one_of" in error:
        return ('the schema uses "oneOf" with alternatives that may overlap, which is not '
                'supported: use "anyOf"')
    if kind == "json" and "regex" in error:
        return f'"pattern" of the schema cannot be used: {_one_line(error)}'
    return f"{kind} cannot be used: {_one_line(error)}"


def _one_line(error: str) -> str:
    text = error.partition("<state>")[0].replace("<non-verbose/>", "")
    # the picture of the place (text, carets) says nothing on one line
    lines = [line.strip() for line in text.splitlines()]
    text = " ".join(line for line in lines if line and not re.fullmatch(r"[\^| ]+", line))
    return text if len(text) <= _MAX_ERROR_CHARS else text[: _MAX_ERROR_CHARS - 3] + "..."
