"""What the grammar tests share: backends over bytes, masks as sets, and a small schema check."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.grammar.backend import GrammarMatcher
from octavo.grammar.llguidance_backend import LLGuidanceBackend
from octavo.testing.byte_tokenizer import EOS_ID, IM_END_ID, VOCAB_SIZE, byte_tokenizer
from octavo.testing.toy_grammar import ToyGrammarBackend

EOS_IDS = (EOS_ID, IM_END_ID)


def toy_backend() -> ToyGrammarBackend:
    tokens = [bytes([i]) for i in range(256)] + [b""] * (VOCAB_SIZE - 256)
    return ToyGrammarBackend(tokens, eos_token_ids=EOS_IDS)


def real_backend() -> LLGuidanceBackend:
    """llguidance over bytes, with some ids the tokenizer does not know."""
    return LLGuidanceBackend(byte_tokenizer().to_json(), vocab_size=VOCAB_SIZE + 9,
                             eos_token_ids=EOS_IDS)


def allowed(matcher: GrammarMatcher, vocab_size: int) -> set[int]:
    """The ids of a fresh mask. Its memory is dirty before, and its spare bits stay clear."""
    row = np.full((vocab_size + 31) // 32, 0xFFFFFFFF, np.uint32)
    matcher.fill_mask(row)
    ids = set(np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist())
    assert max(ids, default=0) < vocab_size
    return ids


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value validates: the keywords these tests use, written from the specification."""
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    kind = schema.get("type")
    if kind in kinds and not isinstance(value, kinds[kind]):
        return False
    if kind in ("integer", "number") and (
            isinstance(value, bool) or not isinstance(value, (int, float))
            or (kind == "integer" and value != int(value))):
        return False
    checks = [
        "enum" not in schema or value in schema["enum"],
        "const" not in schema or value == schema["const"],
        "anyOf" not in schema or any(fits(value, s) for s in schema["anyOf"]),
    ]
    if isinstance(value, str):
        checks += [schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1 << 30),
                   re.search(schema.get("pattern", ""), value) is not None]
    if isinstance(value, (int, float)):
        checks += [value >= schema.get("minimum", value), value <= schema.get("maximum", value)]
    if isinstance(value, list):
        checks += [schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1 << 30)]
        checks += [fits(item, schema.get("items", {})) for item in value]
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        checks += [key in value for key in schema.get("required", [])]
        checks += [fits(item, properties[key]) if key in properties
                   else schema.get("additionalProperties", True) is not False
                   for key, item in value.items()]
    return all(checks)


def compact(text: str) -> bool:
    """Whether JSON has no white space between its tokens."""
    return not re.search(r"\s", re.sub(r'"(\\.|[^"\\])*"', "", text))
