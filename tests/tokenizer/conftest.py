"""Tokenizers for the tests of this folder: the default model's, and small ones made here."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from gguf import GGUFReader
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from octavo.tokenizer.loading import load_tokenizer
from octavo.tokenizer.tokenizer import Tokenizer

MODEL = Path.home() / ".cache/octavo/models/SmolLM2-135M-Instruct.Q4_1.gguf"


def byte_level_inner(control: list[str], user_defined: list[str] | None = None) -> Any:
    """A tokenizer with a token a byte, no merges, and these added tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(
        models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[])
    )
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(c, special=True, normalized=False) for c in control])
    inner.add_tokens([AddedToken(c, special=False, normalized=False) for c in user_defined or []])
    return inner


@pytest.fixture(scope="session")
def gguf_metadata() -> dict[str, Any]:
    """The default model's metadata, read by the independent `gguf` package."""
    reader = GGUFReader(MODEL)
    return {
        key: field.contents() for key, field in reader.fields.items() if key.startswith("tokenizer")
    }


@pytest.fixture(scope="session")
def gguf_file(gguf_metadata: dict[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(
        format="gguf", metadata=gguf_metadata, tokenizer_dir=None, config=SimpleNamespace()
    )


@pytest.fixture(scope="session")
def smollm(gguf_file: SimpleNamespace) -> Tokenizer:
    return load_tokenizer(gguf_file)
