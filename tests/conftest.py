"""Shared fixtures: the default model's path. Tests never download; `make test` fetches it first."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's GGUF file in the local cache."""
    cache = os.environ.get("OCTAVO_CACHE")
    root = Path(cache) if cache else Path(
        os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "octavo"
    path = root / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.is_file(), f"{path} is missing: run `make test`, or `octavo pull smollm2-135m`"
    return path
