"""`octavo quantize`: GGUF and folders in, GGUF out, the same tokenizer and weights."""

from pathlib import Path

import numpy as np
import pytest

from octavo.cli.main import main
from octavo.tokenizer.loading import load_chat_template, load_tokenizer
from octavo.weights.convert import FILE_TYPES
from octavo.weights.gguf import read_gguf
from octavo.weights.model_file import open_model
from tests.weights.builders import gguf_metadata, gguf_tensors, save_gguf
from tools.make_variants import HF_VARIANT, make_variant

TEXT = "Café 2024: <|im_start|> isn't 12345\n\n  the END, naïve 北京"


@pytest.fixture
def source(tmp_path: Path, model_path: Path) -> Path:
    """A tiny bfloat16 model with the default model's vocabulary."""
    real = read_gguf(model_path).metadata
    metadata = gguf_metadata() | {k: real.encoded(k) for k in real if k.startswith("tokenizer.")}
    tensors = gguf_tensors() | {"token_embd.weight": np.zeros((49152, 64), np.float32)}
    return save_gguf(tmp_path / "Voc.BF16.gguf", metadata, tensors, "BF16")


def test_there_and_back(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """GGUF to folder (bfloat16, exact) to GGUF gives the same weights, tokens and template."""
    out = source.parent / "back.gguf"
    with open_model(source) as model:
        folder = make_variant(model, source.parent, HF_VARIANT)
        assert main(["quantize", str(folder), str(out), "--type", "bf16"]) == 0
        with open_model(out) as made:
            for name in model.tensors:
                if model.quant_of(name) == "BF16":
                    assert made.raw(name).tobytes() == model.raw(name).tobytes(), name
                else:  # norms lost bits on the way to bfloat16
                    assert np.allclose(made.f32(name), model.f32(name), rtol=0.004), name
            ours, theirs = load_tokenizer(made), load_tokenizer(model)
            assert ours.encode(TEXT) == theirs.encode(TEXT)
            assert set(ours.eos_token_ids) == set(theirs.eos_token_ids)
            assert ours.bos_token_id == theirs.bos_token_id and ours.add_bos == theirs.add_bos
            assert (load_chat_template(made, ours).source
                    == load_chat_template(model, theirs).source)
            assert made.metadata["tokenizer.ggml.pre"] == model.metadata["tokenizer.ggml.pre"]
            assert set(made.config.eos_token_ids) == set(model.config.eos_token_ids)
    captured = capsys.readouterr()
    assert captured.out.startswith(f"{out}: BF16, weights ") and captured.err == ""


def test_gguf_in(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = source.parent / "q.gguf"
    command = ["quantize", str(source), str(out), "--type", "Q4_0",
               "--token-embedding-type", "q8_0"]
    assert main(command) == 0
    with open_model(out) as made:
        assert {t.quant for t in made.tensors.values()} == {"F32", "Q4_0", "Q8_0"}
    assert main(command) == 1
    assert capsys.readouterr().err == (
        f"octavo: error: {out}: is there already; --force replaces it\n")
    assert main([*command, "--force", "--quiet"]) == 0


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    from octavo.cli.quantize import TYPES

    assert set(TYPES) == set(FILE_TYPES)
    for wrong in (["a", "b"], ["a", "b", "--type", "Q9"], ["a", "--type", "Q4_0"]):
        with pytest.raises(SystemExit) as ended:
            main(["quantize", *wrong])
        assert ended.value.code == 2
    assert main(["quantize", "/nowhere.gguf", "/x.gguf", "--type", "Q4_0"]) == 1
    assert capsys.readouterr().err.endswith("/nowhere.gguf: no such file or folder\n")
