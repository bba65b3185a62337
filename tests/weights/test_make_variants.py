"""The variant maker, on a tiny model: same model in every type, rows in the right order."""

from pathlib import Path

import numpy as np
import pytest

from octavo.weights.gguf import read_gguf
from octavo.weights.model_file import open_model
from tests.weights.builders import HEAD_DIM, gguf_metadata, gguf_tensors, save_gguf
from tools.make_variants import DEFAULT_TYPES, HF_VARIANT, main, make_variant, neox_rows


@pytest.fixture
def source(tmp_path: Path) -> Path:
    metadata = gguf_metadata() | {"general.file_type": 0, "general.alignment": 32}
    return save_gguf(tmp_path / "Tiny.F32.gguf", metadata, gguf_tensors())


@pytest.mark.parametrize("variant", [t for t in DEFAULT_TYPES if t != HF_VARIANT])
def test_variant_holds_the_same_model(source: Path, variant: str) -> None:
    with open_model(source) as model:
        path = make_variant(model, source.parent, variant)
        assert path.name == f"Tiny.{variant}.gguf"
        with open_model(path) as made:
            assert made.config == model.config
            quants = {len(t.shape): t.quant for t in made.tensors.values()}
            stand_in = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}.get(variant, variant)
            assert quants == {1: "F32", 2: stand_in}
            for name in model.tensors:
                values = model.f32(name)
                error = np.abs(made.f32(name) - values).mean() / np.abs(values).mean()
                assert error < 0.1, (name, error)
    theirs, ours = read_gguf(source).metadata, read_gguf(path).metadata
    for key in theirs:
        if key not in ("general.file_type", "general.alignment"):
            assert ours.encoded(key) == theirs.encoded(key)


def test_neox_rows_pair_up(source: Path) -> None:
    """Rotating interleaved rows, then reordering, is reordering, then rotating halves."""
    with open_model(source) as model:
        name = "layers.0.self_attn.q_proj.weight"
        rows = model.f32(name)
        turned = neox_rows(model, name, rows)
        half = HEAD_DIM // 2
        for head in range(model.config.num_heads):
            for i in range(half):
                at = head * HEAD_DIM
                assert (turned[at + i] == rows[at + 2 * i]).all()
                assert (turned[at + half + i] == rows[at + 2 * i + 1]).all()
        other = "layers.0.self_attn.v_proj.weight"
        assert (neox_rows(model, other, rows) == rows).all()


def test_folder_variant(source: Path, model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of the tiny model with the default model's vocabulary, so that it can be rebuilt."""
    real = read_gguf(model_path).metadata
    metadata = gguf_metadata() | {k: real.encoded(k) for k in real if k.startswith("tokenizer.")}
    embedding = np.zeros((49152, 64), np.float32)
    tensors = gguf_tensors() | {"token_embd.weight": embedding}
    path = save_gguf(source.parent / "Voc.BF16.gguf", metadata, tensors, "BF16")
    with open_model(path) as model:
        folder = make_variant(model, source.parent, HF_VARIANT)
        with open_model(folder) as made:
            assert made.config.rope.style == "neox" and made.tokenizer_dir == folder
            assert made.config.eos_token_ids == model.config.eos_token_ids
            for name in model.tensors:
                expected = neox_rows(model, name, model.f32(name))
                assert made.tensors[name].quant == "BF16"
                assert np.abs(made.f32(name) - expected).max() <= 0.004 * np.abs(expected).max()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (folder / name).stat().st_size > 0
    assert "<|im_start|>" in (folder / "tokenizer_config.json").read_text()


def test_command_line(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = source.parent / "out"
    assert main([str(out), "--types", "F16", "Q8_0", "--model", str(source)]) == 0
    assert sorted(p.name for p in out.iterdir()) == ["Tiny.F16.gguf", "Tiny.Q8_0.gguf"]
    assert main([str(out), "--model", str(out / "absent.gguf")]) == 1
    assert "absent.gguf: no such file" in capsys.readouterr().err
