"""A tokenizer.json put into GGUF keys and read back is the same tokenizer."""

import json
from pathlib import Path

import pytest

from octavo.errors import UnsupportedModelError
from octavo.tokenizer.gguf_export import gguf_vocabulary
from octavo.tokenizer.gguf_tokenizer import build_from_gguf, pre_tokenizer_names
from octavo.weights.model_file import open_model
from tests.weights.builders import hf_config, hf_tensors, save_folder

TOKENS = ["a", "b", "c", "1", "2", "Ġ", "ab", "Ġab", "abc", "12", "<|end|>", "<tool>"]
MERGES = ["a b", "Ġ ab", "ab c", "1 2"]
TEXT = "ab abc a1212b\n c<|end|>ab<tool>12 ab"


def folder_of(tmp_path: Path, pre: str) -> Path:
    """A folder as the makers of such a model would publish it."""
    folder = save_folder(tmp_path / "hf", hf_config(eos_token_id=10), hf_tensors())
    inner = build_from_gguf({
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": MERGES, "tokenizer.ggml.token_type": [1] * 10 + [3, 4],
    })  # fmt: skip
    content = json.loads(inner.to_str())
    for part in content["pre_tokenizer"].get("pretokenizers", [content["pre_tokenizer"]]):
        if part["type"] == "ByteLevel":
            part["trim_offsets"] = False  # published files differ in it; it moves no token
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("pre", pre_tokenizer_names())
def test_there_and_back(tmp_path: Path, pre: str) -> None:
    folder = folder_of(tmp_path, pre)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    with open_model(folder) as model:
        found = gguf_vocabulary(model, vocab_size=40)
    back = build_from_gguf(found)
    expected = json.loads((folder / "tokenizer.json").read_text())
    made = json.loads(back.to_str())
    for content in (expected, made):
        parts = content["pre_tokenizer"].get("pretokenizers", [content["pre_tokenizer"]])
        for part in parts:
            part.pop("trim_offsets", None)
    for key in ("pre_tokenizer", "normalizer", "added_tokens"):
        assert made[key] == expected[key], key
    assert made["model"]["ignore_merges"] == expected["model"]["ignore_merges"]
    assert found["tokenizer.ggml.tokens"][:12] == TOKENS
    assert found["tokenizer.ggml.tokens"][12:14] == ["[PAD12]", "[PAD13]"]
    assert found["tokenizer.ggml.token_type"] == [1] * 10 + [3, 4] + [5] * 28
    assert found["tokenizer.ggml.eos_token_id"] == 10
    assert found["tokenizer.chat_template"] == "{{ messages }}"
    import tokenizers

    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert back.encode(TEXT).ids == theirs.encode(TEXT).ids


def test_ids_without_a_row_and_tokens_with_habits_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "gpt-2")
    with open_model(folder) as model:
        with pytest.raises(UnsupportedModelError, match="has no row"):
            gguf_vocabulary(model, vocab_size=11)
        content = json.loads((folder / "tokenizer.json").read_text())
        content["added_tokens"][1]["rstrip"] = True
        (folder / "tokenizer.json").write_text(json.dumps(content))
        with pytest.raises(UnsupportedModelError, match="takes spaces"):
            gguf_vocabulary(model, vocab_size=40)
