"""Shared fixtures: the default model's path, and a tiny model. Tests never download; `make test`
fetches the model first."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from octavo.testing.toy_model import tiny_llama

# The same examples in every run, so that what passes once passes again; others by
# OCTAVO_HYPOTHESIS=random.
settings.register_profile("same", derandomize=True)
settings.load_profile("default" if os.environ.get("OCTAVO_HYPOTHESIS") == "random" else "same")


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model's GGUF file in the local cache."""
    cache = os.environ.get("OCTAVO_CACHE")
    root = Path(cache) if cache else Path(
        os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "octavo"
    path = root / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.is_file(), f"{path} is missing: run `make test`, or `octavo pull smollm2-135m`"
    return path


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer random Llama over bytes as a Hugging Face folder."""
    folder = tiny_llama().save(tmp_path_factory.mktemp("models") / "tiny")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}")
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.9}')
    return folder
