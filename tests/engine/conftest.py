"""A tiny model on disk, for tests of the doors."""

from pathlib import Path

import pytest

from octavo.testing.toy_model import tiny_llama


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer random Llama over bytes as a Hugging Face folder."""
    folder = tiny_llama().save(tmp_path_factory.mktemp("models") / "tiny")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}")
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.9}')
    return folder
