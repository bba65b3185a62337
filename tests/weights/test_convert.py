"""Models written as GGUF: from GGUF and from folders, whole or not at all."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import ConfigError, ModelLoadError, OctavoError, UnsupportedModelError
from octavo.weights.convert import FILE_TYPES, TargetTypes, convert_model
from octavo.weights.gguf import read_gguf
from octavo.weights.gguf_write import write_gguf
from octavo.weights.model_file import open_model
from octavo.weights.quant_types import QUANT_TYPES
from tests.weights.builders import (
    gguf_metadata,
    gguf_tensors,
    hf_config,
    hf_tensors,
    save_folder,
    save_gguf,
)

ROPE_SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip


def test_the_file_types_are_all_types_that_can_be_written() -> None:
    assert FILE_TYPES.keys() <= QUANT_TYPES.keys()


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_folder_becomes_the_same_model(tmp_path: Path, model_type: str) -> None:
    kinds = {"bias": model_type == "qwen2", "qk_norm": model_type == "qwen3"}
    config = hf_config(model_type, sliding_window=64 if model_type == "mistral" else None)
    folder = save_folder(tmp_path / "hf", config, hf_tensors(**kinds))
    path = tmp_path / "out.gguf"
    with open_model(folder) as model:
        convert_model(model, path, TargetTypes(matrices="F32"))
        with open_model(path) as made:
            llama = model_type in ("llama", "mistral")
            expected = dataclasses.replace(
                model.config, architecture="llama" if llama else model_type,
                rope=dataclasses.replace(
                    model.config.rope, style="interleaved" if llama else "neox"),
                rms_norm_eps=made.config.rms_norm_eps, eos_token_ids=(), bos_token_id=None,
            )  # fmt: skip
            assert made.config == expected
            assert made.config.rms_norm_eps == pytest.approx(model.config.rms_norm_eps, rel=1e-6)
            head, half = model.config.head_dim, model.config.head_dim // 2
            for name in model.tensors:
                theirs, ours = model.f32(name), made.f32(name)
                turned = llama and name.endswith(("q_proj.weight", "k_proj.weight"))
                if turned:
                    for row in range(len(theirs)):
                        at, i = divmod(row, head)
                        source = at * head + i // 2 + (i % 2) * half
                        assert (ours[row] == theirs[source]).all(), (name, row)
                else:
                    assert (ours == theirs).all(), name


def test_divisors_and_linear_scaling_survive(tmp_path: Path) -> None:
    from octavo.cli.quantize import _rope_divisors
    from octavo.models.rope import rope_spec

    for number, scaling in enumerate((ROPE_SCALING, {"rope_type": "linear", "factor": 4.0})):
        config = hf_config(rope_scaling=scaling)
        folder = save_folder(tmp_path / f"hf{number}", config, hf_tensors())
        path, again = tmp_path / f"{number}.gguf", tmp_path / f"{number}-again.gguf"
        with open_model(folder) as model:
            convert_model(model, path, TargetTypes(matrices="BF16"),
                          rope_divisors=_rope_divisors(model.config))
            expected = rope_spec(model.config.rope).inv_freq
        with open_model(path) as made:
            assert rope_spec(made.config.rope).inv_freq == pytest.approx(expected, rel=1e-6)
            convert_model(made, again, TargetTypes(matrices="Q8_0"))
            with open_model(again) as twice:
                assert twice.config == made.config


def test_divisors_beside_a_linear_factor_are_not_multiplied_twice(tmp_path: Path) -> None:
    divisors = np.linspace(1, 4, 8).astype(np.float32)
    metadata = gguf_metadata(rope__scaling__type="linear", rope__scaling__factor=2.0)
    source = save_gguf(
        tmp_path / "a.gguf", metadata, gguf_tensors() | {"rope_freqs.weight": divisors}
    )
    with open_model(source) as model:
        convert_model(model, tmp_path / "b.gguf", TargetTypes(matrices="Q4_0"))
        with open_model(tmp_path / "b.gguf") as made:
            assert made.config == model.config


def test_embeddings_and_head_may_have_their_own_types(tmp_path: Path) -> None:
    source = save_gguf(tmp_path / "a.gguf", gguf_metadata(), gguf_tensors(head=True))
    types = TargetTypes(matrices="Q4_0", token_embedding="Q8_0", output="Q5_1")
    with open_model(source) as model:
        seen: list[tuple[int, int, str]] = []
        convert_model(model, tmp_path / "b.gguf", types,
                      progress=lambda *event: seen.append(event))
        assert [event[0] for event in seen] == list(range(len(model.tensors)))
    with open_model(tmp_path / "b.gguf") as made:
        quants = {name: t.quant for name, t in made.tensors.items()}
    assert quants["embed_tokens.weight"] == "Q8_0" and quants["lm_head.weight"] == "Q5_1"
    assert quants["layers.1.mlp.down_proj.weight"] == "Q4_0" and quants["norm.weight"] == "F32"
    assert read_gguf(tmp_path / "b.gguf").metadata["general.file_type"] == FILE_TYPES["Q4_0"]


@pytest.mark.parametrize(("value", "quant", "says"), [
    (np.nan, "Q4_0", "not finite"), (np.inf, "F16", "not finite"), (1e6, "Q8_0", "1e\\+06"),
])
def test_values_that_cannot_be_held_are_refused(
    tmp_path: Path, value: float, quant: str, says: str
) -> None:
    tensors = gguf_tensors()
    tensors["blk.1.ffn_up.weight"][3, 5] = value
    source = save_gguf(tmp_path / "a.gguf", gguf_metadata(), tensors)
    out = tmp_path / "b.gguf"
    with open_model(source) as model, pytest.raises(ModelLoadError, match=f"up_proj.*{says}"):
        convert_model(model, out, TargetTypes(matrices=quant))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gguf"]


def test_nothing_is_replaced_unasked_and_nothing_half_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save_gguf(tmp_path / "a.gguf", gguf_metadata(), gguf_tensors())
    out = tmp_path / "b.gguf"
    out.write_text("mine")
    with open_model(source) as model:
        types = TargetTypes(matrices="Q8_0")
        with pytest.raises(ConfigError, match="is there already"):
            convert_model(model, out, types)
        with pytest.raises(ConfigError, match="is a folder"):
            convert_model(model, tmp_path, types, overwrite=True)
        with pytest.raises(OctavoError, match="cannot be written: No such file"):
            convert_model(model, tmp_path / "nowhere" / "b.gguf", types)

        def full(path: Path, **parts: object) -> None:
            write_gguf(path, metadata={}, tensors=[])
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("octavo.weights.convert.write_gguf", full)
        with pytest.raises(OctavoError, match="gguf: cannot be written: No space left"):
            convert_model(model, out, types, overwrite=True)
        assert out.read_text() == "mine"
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.gguf", "b.gguf"]
        monkeypatch.undo()
        convert_model(model, source, types, overwrite=True)  # over its own input
    with open_model(source) as made:
        assert made.tensors["embed_tokens.weight"].quant == "Q8_0"


def test_a_folder_with_a_tokenizer_gguf_cannot_name_is_refused(tmp_path: Path) -> None:
    import tokenizers

    from octavo.tokenizer.gguf_export import gguf_vocabulary

    folder = save_folder(tmp_path / "hf", hf_config(), hf_tensors())
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Whitespace(),
         tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.save(str(folder / "tokenizer.json"))
    with open_model(folder) as model, pytest.raises(UnsupportedModelError, match="pre-tokenizer"):
        gguf_vocabulary(model, vocab_size=40)
