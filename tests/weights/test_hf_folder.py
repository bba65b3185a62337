"""Hugging Face folders: safetensors, shards, configuration, and what is refused."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import ModelLoadError, UnsupportedModelError
from octavo.weights.model_file import ModelFile, open_model
from octavo.weights.quantize import to_bf16
from tests.weights.builders import (
    hf_config,
    hf_tensors,
    save_folder,
    save_index,
    save_safetensors,
)


def refusal(path: Path, error: type[ModelLoadError] = ModelLoadError) -> str:
    with pytest.raises(error) as caught:
        open_model(path)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(str(path)), message
    return message


def opened(folder: Path, config: dict[str, Any], **kinds: bool) -> ModelFile:
    return open_model(save_folder(folder, config, hf_tensors(**kinds)))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_reads_each_dtype(tmp_path: Path, dtype: str) -> None:
    tensors = hf_tensors()
    (tmp_path / "tokenizer.json").write_text("{}")
    folder = save_folder(tmp_path, hf_config(), tensors, dtype=dtype)
    with open_model(folder) as model:
        assert model.format == "safetensors" and model.tokenizer_dir == folder
        assert model.name == folder.name and model.metadata == {}
        for name, info in model.tensors.items():
            values = tensors[f"model.{name}"]
            assert info.quant == dtype and info.shape == values.shape
            expected = {
                "F32": values,
                "F16": values.astype(np.float16).astype(np.float32),
                "BF16": (to_bf16(values).astype(np.uint32) << 16).view(np.float32),
            }[dtype]
            assert (model.f32(name) == expected).all()
        assert model.nbytes == sum(t.size for t in tensors.values()) * (4 if dtype == "F32" else 2)


def test_the_safetensors_library_reads_and_writes_the_same(tmp_path: Path) -> None:
    tensors = hf_tensors()
    folder = save_folder(tmp_path, hf_config(), tensors)
    theirs = safetensors.numpy.load_file(folder / "model.safetensors")
    assert all((theirs[name] == values).all() for name, values in tensors.items())
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    with open_model(folder) as model:
        assert (model.f32("norm.weight") == tensors["model.norm.weight"]).all()


def test_config_of_each_family(tmp_path: Path) -> None:
    config = opened(tmp_path / "l", hf_config(sliding_window=16)).config
    assert (config.architecture, config.sliding_window) == ("llama", None)
    assert config.rope.style == "neox" and config.rope.dim == 16
    config = opened(tmp_path / "m", hf_config("mistral", sliding_window=16)).config
    assert (config.architecture, config.sliding_window) == ("mistral", 16)
    assert opened(tmp_path / "m", hf_config("mistral")).config.sliding_window == 4096
    null = hf_config("mistral") | {"sliding_window": None}
    assert opened(tmp_path / "m", null).config.sliding_window is None
    config = opened(tmp_path / "q2", hf_config("qwen2"), bias=True).config
    assert config.attention_bias and not config.qk_norm
    config = opened(tmp_path / "q3", hf_config("qwen3"), qk_norm=True).config
    assert config.qk_norm and not config.attention_bias
    named = hf_config("llama", architectures=["LlamaForCausalLM"], head_dim=None)
    assert opened(tmp_path / "n", named, head=True).config.head_dim == 16


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"use_sliding_window": False, "sliding_window": 8}, None),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}, 8),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}, None),
        ({"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "refused"),
        ({"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, 4096),
        ({"use_sliding_window": True, "layer_types": ["full_attention"] * 2}, None),
        (
            {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
            "refused",
        ),
    ],
)
def test_qwen2_windows(tmp_path: Path, changes: dict[str, Any], window: Any) -> None:
    folder = save_folder(tmp_path, hf_config("qwen2", **changes), hf_tensors(bias=True))
    if window == "refused":
        assert "key layer_types:" in refusal(folder, UnsupportedModelError)
    else:
        assert open_model(folder).config.sliding_window == window


LLAMA3 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    "spelling",
    [
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3}, "rope_theta": 500000.0},
        {"rope_scaling": {"type": "llama3", **LLAMA3}, "rope_theta": 500000.0},
        {
            "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3},
            "rope_theta": None,
        },
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
            "rope_scaling": {"rope_type": "llama3", **LLAMA3},
            "rope_theta": None,
        },
    ],
)
def test_llama3_rope_in_every_spelling(tmp_path: Path, spelling: dict[str, Any]) -> None:
    rope = opened(tmp_path, hf_config(**spelling)).config.rope
    assert (rope.scaling, rope.theta, rope.factor) == ("llama3", 500000.0, 8.0)
    assert (rope.low_freq_factor, rope.high_freq_factor) == (1.0, 4.0)
    assert rope.original_max_position == 32


def test_other_rope_settings(tmp_path: Path) -> None:
    linear = {"rope_type": "linear", "factor": 2.0}
    rope = opened(tmp_path, hf_config(rope_scaling=linear)).config.rope
    assert (rope.scaling, rope.factor) == ("linear", 2.0)
    rope = opened(tmp_path, hf_config(rope_theta=None)).config.rope
    assert (rope.scaling, rope.theta) == (None, 10000.0)
    for bad, words in [
        ({"rope_type": "no_such_type"}, "rope_scaling.rope_type: 'no_such_type' is not supported"),
        ({"type": "yarn", "factor": 2.0}, "rope_scaling.rope_type: 'yarn'"),
        ({"rope_type": "linear"}, "key rope_scaling.factor: is missing"),
        ({"rope_type": "llama3", **LLAMA3, "factor": -1}, "key rope_scaling.factor: is -1"),
        ({"rope_type": "llama3", **LLAMA3, "high_freq_factor": 0.5}, "must exceed"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor: 0.5"),
        ({"full_attention": {"rope_type": "default"}}, "per layer type"),
        ("llama3", "key rope_scaling: is 'llama3'"),
    ]:
        folder = save_folder(tmp_path, hf_config(rope_scaling=bad), hf_tensors())
        assert words in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gemma3"}, "key model_type: 'gemma3' is not supported"),
        ({"model_type": None}, "key model_type: is missing"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "key model_type: 'llama' is not supported"),
        ({"hidden_act": "gelu"}, "key hidden_act: 'gelu' is not supported (supported: silu)"),
        ({"mlp_bias": True}, "key mlp_bias: True"),
        ({"num_local_experts": 8}, "key num_local_experts: 8"),
        ({"partial_rotary_factor": 0.5}, "key partial_rotary_factor: 0.5"),
        ({"quantization_config": {"quant_method": "fp8"}}, "key quantization_config.quant_method"),
        ({"hidden_size": None}, "key hidden_size: is missing"),
        ({"hidden_size": 64.0}, "key hidden_size: is 64.0, expected a positive integer"),
        ({"hidden_size": True}, "key hidden_size: is True"),
        ({"vocab_size": 10**30}, "key vocab_size"),
        ({"num_key_value_heads": 3}, "key num_key_value_heads: is 3, which does not divide"),
        ({"head_dim": 15}, "key head_dim: 15"),
        ({"rms_norm_eps": float("inf")}, "key rms_norm_eps: is inf"),
        ({"rms_norm_eps": 10**400}, "key rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "key tie_word_embeddings: is 'yes'"),
        ({"eos_token_id": [1, "x"]}, "key eos_token_id"),
    ],
)
def test_config_refusals(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    message = refusal(save_folder(tmp_path, hf_config(**changes), hf_tensors()))
    assert words in message and "config.json" in message


def test_token_ids_and_generation_defaults(tmp_path: Path) -> None:
    generation = {"eos_token_id": [5, 2], "temperature": 0.2, "top_k": 20, "do_sample": True}
    folder = save_folder(tmp_path, hf_config(), hf_tensors(), generation=generation)
    config = open_model(folder).config
    assert config.eos_token_ids == (5, 2) and config.bos_token_id == 1
    assert config.generation_defaults == {"temperature": 0.2, "top_k": 20}
    save_folder(tmp_path, hf_config(), hf_tensors(), generation={"top_p": "high"})
    with pytest.raises(ModelLoadError, match=r"generation_config.json: key top_p: is 'high'"):
        open_model(folder)
    save_folder(tmp_path, hf_config(eos_token_id=-1), hf_tensors(), generation={})
    assert open_model(folder).config.eos_token_ids == ()


def test_untied_head(tmp_path: Path) -> None:
    untied = hf_config(tie_word_embeddings=False)
    message = refusal(save_folder(tmp_path, untied, hf_tensors()))
    assert "tensor lm_head.weight: is missing, and tie_word_embeddings is false" in message
    assert "lm_head.weight" in opened(tmp_path, untied, head=True).tensors
    assert "lm_head.weight" not in opened(tmp_path, hf_config(), head=True).tensors


def test_missing_misshapen_and_surplus_tensors(tmp_path: Path) -> None:
    tensors = hf_tensors()
    name = "model.layers.1.mlp.down_proj.weight"
    without = {n: v for n, v in tensors.items() if n != name}
    assert f"tensor {name}: is missing" in refusal(save_folder(tmp_path, hf_config(), without))
    turned = tensors | {name: np.ascontiguousarray(tensors[name].T)}
    message = refusal(save_folder(tmp_path, hf_config(), turned))
    assert f"tensor {name}: has shape [96, 64]" in message and "asks for [64, 96]" in message
    bias = {"model.layers.0.self_attn.o_proj.bias": np.ones(64, np.float32)}
    message = refusal(save_folder(tmp_path, hf_config(), tensors | bias), UnsupportedModelError)
    assert "model.layers.0.self_attn.o_proj.bias: is not part of a llama model" in message
    harmless = {
        "model.unused_empty": np.zeros(0, np.float32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
        "model.layers.0.empty.weight": np.zeros((0, 4), np.float32),
        "value_head.weight": np.ones(3, np.float32),
    }
    model = open_model(save_folder(tmp_path, hf_config(), tensors | harmless))
    assert len(model.tensors) == len(tensors)


def test_shards(tmp_path: Path) -> None:
    tensors = hf_tensors()
    save_folder(tmp_path, hf_config(), {"model.norm.weight": np.zeros(3, np.float32)})
    names = list(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for shard, part in shards.items():
        save_safetensors(tmp_path / shard, {n: tensors[n] for n in part})
    weight_map = {n: shard for shard, part in shards.items() for n in part}
    save_index(tmp_path, weight_map)
    # The stray model.safetensors, whose norm has another shape, must not be looked at.
    with open_model(tmp_path) as model:
        for name in model.tensors:
            assert (model.f32(name) == tensors[f"model.{name}"]).all()

    save_index(tmp_path, weight_map | {"model.norm.weight": "a.safetensors"})
    assert "a.safetensors: tensor model.norm.weight: is missing" in refusal(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    save_index(tmp_path, weight_map)
    assert "index.json: shard b.safetensors is missing" in refusal(tmp_path)
    for shard in ("../b.safetensors", "/etc/passwd", "", 7, ".."):
        save_index(tmp_path, {"model.norm.weight": shard})
        message = refusal(tmp_path)
        assert "not a file name in this folder" in message or ".." in message
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    assert "key weight_map" in refusal(tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    assert "config.json is missing" in refusal(tmp_path)
    (tmp_path / "x.gguf").write_bytes(b"")
    assert "to open x.gguf, give its path" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert "config.json: the file is not valid JSON" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    assert "config.json: the file is not valid JSON" in refusal(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(hf_config()))
    assert "model.safetensors (or model.safetensors.index.json) is missing" in refusal(tmp_path)
    (tmp_path / "one.safetensors").write_bytes(b"12345678")
    assert "give the folder's path" in refusal(tmp_path / "one.safetensors")


def edit_header(folder: Path, **changes: Any) -> None:
    """Change fields of one tensor's header entry; a change of None removes the field."""
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    length = struct.unpack_from("<Q", raw)[0]
    header = json.loads(raw[8 : 8 + length])
    entry = header["model.norm.weight"] | changes
    header["model.norm.weight"] = {k: v for k, v in entry.items() if v is not None}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "F64"}, "F64 [64] needs 512 bytes"),
        ({"dtype": None}, "dtype is None"),
        ({"dtype": "NEW", "data_offsets": [0, 0]}, "dtype NEW is not supported"),
        ({"shape": [65]}, "F32 [65] needs 260 bytes"),
        ({"shape": [-64]}, "shape is [-64]"),
        ({"shape": "64"}, "shape is '64'"),
        ({"shape": [1] * 60 + [64]}, "shape is"),
        ({"data_offsets": [0, 1 << 70]}, "data_offsets is"),
        ({"data_offsets": [0, 1 << 50]}, "truncated"),
        ({"data_offsets": [0, 256]}, "overlaps"),
        ({"data_offsets": [4, 0]}, "data_offsets is [4, 0]"),
        ({"data_offsets": [0.0, 256.0]}, "data_offsets is"),
    ],
)
def test_broken_safetensors_entry(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    folder = save_folder(tmp_path, hf_config(), hf_tensors())
    edit_header(folder, **changes)
    assert words in refusal(folder)


def test_broken_safetensors_file(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, hf_config(), hf_tensors())
    path = folder / "model.safetensors"
    sound = path.read_bytes()
    for size in (0, 5, 8, 100, len(sound) - 1):
        path.write_bytes(sound[:size])
        assert "model.safetensors: " in (message := refusal(folder)) and "truncated" in message
    path.write_bytes(b"\xff" * 64)
    assert "not a safetensors file" in refusal(folder)
    text = b'{"a": {"dtype": "F32"}, "a": {}}'
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    assert "'a' appears twice" in refusal(folder)
    path.write_bytes(struct.pack("<Q", 2) + b"[]")
    assert "not a JSON object" in refusal(folder)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_mutated_safetensors_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    folder = tmp_path / "m"
    if not folder.exists():
        save_folder(folder, hf_config(), hf_tensors())
        (tmp_path / "sound").write_bytes((folder / "model.safetensors").read_bytes())
    sound = bytearray((tmp_path / "sound").read_bytes())
    end = 8 + struct.unpack_from("<Q", sound)[0]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, end - 1))
        sound[at] = data.draw(st.sampled_from(b'0129-."{}[],:x\x00\xff'))
    (folder / "model.safetensors").write_bytes(sound)
    try:
        with open_model(folder) as opened:
            assert opened.f32("norm.weight").shape == (64,)
    except ModelLoadError as err:
        assert "\n" not in str(err)
