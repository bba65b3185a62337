"""A tiny model on disk: random weights over bytes, so that only the grammar gives it sense."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo import LLM
from octavo.testing.toy_model import tiny_llama


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama().save(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def llm(tiny_path: Path) -> Iterator[LLM]:
    with LLM(str(tiny_path), max_model_len=256, num_blocks=64, max_num_seqs=16) as llm:
        yield llm
