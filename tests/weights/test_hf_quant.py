"""AWQ, GPTQ and compressed-tensors folders: exact weights, and what is refused."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import ModelLoadError, UnsupportedModelError
from octavo.weights.convert import TargetTypes, tensors_of
from octavo.weights.dequant import dequantize
from octavo.weights.hf_quant_config import quantization_from_hf
from octavo.weights.load_quantize import QuantizedWeights
from octavo.weights.model_file import open_model
from tests.weights.builders import hf_config, hf_tensors
from tests.weights.quantized_builders import Case, Parts, save_quantized
from tools import quantized_layouts as layouts

PROJ = "model.layers.0.self_attn.q_proj"
NAME = "layers.0.self_attn.q_proj.weight"

CASES = {
    "awq": (Case("awq"), "INT4_MIN"),
    "awq whole row": (Case("awq", group_size=-1), "INT4_MIN"),
    "awq uniform zeros": (Case("awq", symmetric=True), "Q4_0"),
    "gptq v1": (Case("gptq"), "INT4_MIN"),
    "gptq v2": (Case("gptq", version=2), "INT4_MIN"),
    "gptq symmetric": (Case("gptq", symmetric=True), "Q4_0"),
    "gptq v2 symmetric": (Case("gptq", symmetric=True, version=2), "Q4_0"),
    "gptq ragged groups": (Case("gptq", group_size=64), "INT4_MIN"),
    "gptq 8-bit": (Case("gptq", bits=8), "INT8_MIN"),
    "gptq 8-bit symmetric": (Case("gptq", bits=8, symmetric=True), "Q8_0"),
    "gptq 8-bit v2 whole row": (Case("gptq", bits=8, version=2, group_size=-1), "INT8_MIN"),
    "gptq bf16 scales": (Case("gptq", symmetric=True, scale_type="bf16"), "Q4_0"),
    "gptq desc_act": (Case("gptq", shuffled=True), "F32"),
    "gptq 8-bit desc_act": (Case("gptq", bits=8, shuffled=True, symmetric=True), "F32"),
    "gptq small groups": (Case("gptq", group_size=16), "F32"),
    "ct 4-bit": (Case("pack-quantized", symmetric=True, scale_type="bf16"), "Q4_0"),
    "ct 4-bit f32 scales": (Case("pack-quantized", symmetric=True, scale_type="float32"), "INT4"),
    "ct 4-bit zeros": (Case("pack-quantized", scale_type="bf16"), "INT4_MIN"),
    "ct 4-bit channel": (Case("pack-quantized", symmetric=True, group_size=-1), "Q4_0"),
    "ct 4-bit actorder": (Case("pack-quantized", symmetric=True, shuffled=True), "F32"),
    "ct 8-bit packed": (Case("pack-quantized", bits=8, symmetric=True), "Q8_0"),
    "ct 8-bit packed zeros": (Case("pack-quantized", bits=8), "INT8_MIN"),
    "ct w8a8": (
        Case("int-quantized", bits=8, symmetric=True, group_size=-1, activations=True), "Q8_0",
    ),
    "ct w8a8 f32 scales": (
        Case("int-quantized", bits=8, symmetric=True, group_size=-1, scale_type="float32"), "INT8",
    ),
    "ct w8 zeros": (Case("int-quantized", bits=8, group_size=-1), "INT8_MIN"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_weights_are_exact(tmp_path: Path, name: str) -> None:
    case, quant = CASES[name]
    expected = save_quantized(tmp_path, case)
    with open_model(tmp_path) as model:
        assert model.quantization is not None
        for tensor, weights in expected.items():
            found = model.f32(tensor)
            assert found.dtype == np.float32
            assert model.quant_of(tensor) == ("F16" if tensor.startswith("embed") or
                                              weights.ndim == 1 else quant)  # fmt: skip
            if case.scale_type == "float32":  # 24-bit scales: one rounding of each product
                np.testing.assert_array_equal(found, weights.astype(np.float32))
            else:
                assert (found == weights).all(), tensor
            model.release(tensor)
        assert model.nbytes < 2 * sum(w.size for w in expected.values())


def test_zero_points_with_f32_scales_round_once(tmp_path: Path) -> None:
    expected = save_quantized(tmp_path, Case("pack-quantized", scale_type="float32"))
    with open_model(tmp_path) as model:
        for name, weights in expected.items():
            assert np.abs(model.f32(name) - weights).max() <= 2**-23 * 16 * 0.02


def test_words_as_the_formats_describe_them(tmp_path: Path) -> None:
    """A word of known nibbles, written out by hand, in the first place of each layout."""
    first = np.int32(0x76543210)

    def awq(tensors: Parts) -> None:
        tensors[f"{PROJ}.qweight"][2][0, 0] = first
        tensors[f"{PROJ}.qzeros"][2][...] = 0
        tensors[f"{PROJ}.scales"][2][...] = 1

    def gptq(tensors: Parts) -> None:
        tensors[f"{PROJ}.qweight"][2][0, 0] = first
        tensors[f"{PROJ}.qzeros"][2][...] = np.uint32(0x77777777).view(np.int32)
        tensors[f"{PROJ}.scales"][2][...] = 1

    def packed(tensors: Parts) -> None:
        tensors[f"{PROJ}.weight_packed"][2][0, 0] = first
        tensors[f"{PROJ}.weight_scale"][2][...] = 1

    found = {}
    for case, change in ((Case("awq"), awq), (Case("gptq"), gptq),
                         (Case("pack-quantized", symmetric=True), packed)):  # fmt: skip
        save_quantized(tmp_path, case, change=change)
        with open_model(tmp_path) as model:
            found[case.method] = model.f32(NAME)
    assert found["awq"][:8, 0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]
    assert found["gptq"][0, :8].tolist() == [q - 8 for q in range(8)]
    assert found["pack-quantized"][0, :8].tolist() == [q - 8 for q in range(8)]


def test_every_family_reads_quantized_matrices(tmp_path: Path) -> None:
    for kind, extras in (("mistral", {}), ("qwen2", {"bias": True}), ("qwen3", {"qk_norm": True})):
        expected = save_quantized(
            tmp_path / kind, Case("awq"), config=hf_config(kind), kinds=extras
        )
        with open_model(tmp_path / kind) as model:
            assert model.config.architecture == kind
            assert all((model.f32(name) == weights).all() for name, weights in expected.items())


def test_a_quantized_head_and_a_float_module(tmp_path: Path) -> None:
    case = Case("gptq")
    head, weights = case.matrix((40, 64), np.random.default_rng(5))
    plain = hf_tensors()[f"{PROJ}.weight"]

    def change(tensors: Parts) -> None:
        tensors |= {f"lm_head.{part}": stored for part, stored in head.items()}
        for part in list(tensors):
            if part.startswith(PROJ):
                del tensors[part]
        tensors[f"{PROJ}.weight"] = layouts.stored(plain)

    save_quantized(tmp_path, case, config=hf_config(tie_word_embeddings=False), change=change)
    with open_model(tmp_path) as model:
        assert (model.f32("lm_head.weight") == weights).all()
        assert model.quant_of(NAME) == "F32" and (model.f32(NAME) == plain).all()


def test_one_scale_a_tensor_and_loose_zero_points(tmp_path: Path) -> None:
    """compressed-tensors' per-tensor form, and zero points as bytes in a packed folder."""
    case = Case("pack-quantized", group_size=-1)
    loose: dict[str, np.ndarray] = {}

    def change(tensors: Parts) -> None:
        for name in list(tensors):
            if name.endswith("weight_scale"):
                tensors[name] = layouts.stored(np.array([0.5], np.float16))
            if name.endswith("weight_zero_point"):
                loose[name] = np.array([-3], np.int8)
                tensors[name] = layouts.stored(loose[name])

    settings = case.config()
    settings["config_groups"]["group_0"]["weights"]["strategy"] = "tensor"
    save_quantized(tmp_path, case, change=change, settings=settings)
    codes = np.random.default_rng(3)
    first, _ = case.matrix((64, 64), codes)
    packed = first["weight_packed"][2].view(np.uint32)
    nibbles = np.stack([(packed >> np.uint32(4 * i)) & 15 for i in range(8)], axis=2)
    expected = (nibbles.reshape(64, 64).astype(np.float32) - 8 + 3) * 0.5
    with open_model(tmp_path) as model:
        first_name = next(n for n in model.tensors if "layers.0" in n and "proj" in n)
        assert first_name == NAME and (model.f32(NAME) == expected).all()


def test_desc_act_is_said_and_can_be_kept_small(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = save_quantized(tmp_path, Case("gptq", shuffled=True))
    with caplog.at_level(logging.WARNING), open_model(tmp_path) as model:
        assert "14 of 14 quantized matrices are dequantized to float32" in caplog.text
        small = QuantizedWeights(model, "int8")
        assert small.quant_of(NAME) == "Q8_0"
        assert np.abs(small.f32(NAME) - expected[NAME]).max() < 0.01 * np.abs(expected[NAME]).max()


def test_desc_act_whose_groups_lie_in_order_stays_quantized(tmp_path: Path) -> None:
    case = Case("gptq", changes={"desc_act": True})
    expected = save_quantized(tmp_path, case)
    with open_model(tmp_path) as model:
        assert model.quant_of(NAME) == "INT4_MIN" and (model.f32(NAME) == expected[NAME]).all()


def test_biases_of_zeros_are_dropped_and_others_are_not(tmp_path: Path) -> None:
    def add(value: float) -> None:
        def change(tensors: Parts) -> None:
            bias = np.full(96, value, np.float16)
            tensors["model.layers.1.mlp.up_proj.bias"] = layouts.stored(bias)

        save_quantized(tmp_path, Case("gptq"), change=change)

    add(0)
    open_model(tmp_path).close()
    add(1)
    with pytest.raises(UnsupportedModelError, match=r"layers\.1\.mlp\.up_proj\.bias: is not part"):
        open_model(tmp_path)


@pytest.mark.parametrize("name", ["quantize_config.json", "quant_config.json"])
def test_settings_in_a_file_of_their_own(tmp_path: Path, name: str) -> None:
    awq = name == "quant_config.json"
    old = {"w_bit": 4, "q_group_size": 32, "zero_point": True, "version": "GEMM"} if awq else {
        "bits": 4, "group_size": 32, "sym": False, "desc_act": False, "damp_percent": 0.1,
    }  # fmt: skip
    expected = save_quantized(tmp_path, Case("awq" if awq else "gptq"), settings={})
    with pytest.raises(ModelLoadError, match="has no quantization_config"):
        open_model(tmp_path)
    (tmp_path / name).write_text(json.dumps(old))
    with open_model(tmp_path) as model:
        assert (model.f32(NAME) == expected[NAME]).all()


def test_overrides_of_gptqmodel(tmp_path: Path) -> None:
    """`dynamic` gives modules settings of their own; the tensors show which."""
    eight, weights = Case("gptq", bits=8, group_size=64).matrix(
        (64, 64), np.random.default_rng(5)
    )

    def change(tensors: Parts) -> None:
        tensors |= {f"{PROJ}.{part}": stored for part, stored in eight.items()}

    case = Case("gptq", changes={"dynamic": {r"+:.*\.0\..*q_proj": {"bits": 8}}})
    expected = save_quantized(tmp_path, case, change=change)
    with open_model(tmp_path) as model:
        assert (model.f32(NAME) == weights).all()
        other = "layers.1.mlp.down_proj.weight"
        assert (model.f32(other) == expected[other]).all()


def test_groups_by_name_come_before_groups_by_class() -> None:
    groups = layouts.compressed_config(4, group_size=32)["config_groups"]
    second = layouts.compressed_config(8, group_size=None, strategy="channel")["config_groups"]
    second["group_0"]["targets"] = [r"re:.*down_proj$", "model.layers.0.mlp.up_proj"]
    settings = layouts.compressed_config(4, group_size=32)
    settings["config_groups"] = {"a": groups["group_0"], "b": second["group_0"]}
    made = quantization_from_hf(Path("config.json"), settings, key="quantization_config")

    def bits(module: str) -> int | None:
        scheme = made.scheme_of(module)
        return None if scheme is None else scheme.bits

    assert bits("model.layers.3.mlp.down_proj") == 8
    assert bits("model.layers.0.mlp.up_proj") == 8
    assert bits("model.layers.1.mlp.up_proj") == 4


def test_a_folder_becomes_gguf_tensors(tmp_path: Path) -> None:
    """Where the type asked for is the one read, the blocks are copied; else they go through f32."""
    expected = save_quantized(tmp_path, Case("gptq", symmetric=True))
    with open_model(tmp_path) as model:
        for quant, bound in (("Q4_0", 0.0), ("Q8_0", 0.01)):
            made = tensors_of(model, TargetTypes(matrices=quant))
            down = next(t for t in made if t.name == "blk.0.ffn_down.weight")
            assert down.quant == quant
            values = dequantize(down.data(), quant, 96)
            weights = expected["layers.0.mlp.down_proj.weight"]
            assert np.abs(values - weights).max() <= bound * np.abs(weights).max()


def test_the_only_file_of_a_folder_may_have_any_name(tmp_path: Path) -> None:
    expected = save_quantized(tmp_path, Case("gptq"))
    (tmp_path / "model.safetensors").rename(tmp_path / "gptq_model-4bit-32g.safetensors")
    with open_model(tmp_path) as model:
        assert (model.f32(NAME) == expected[NAME]).all()
    (tmp_path / "other.safetensors").write_bytes(b"")
    with pytest.raises(ModelLoadError, match="is missing"):
        open_model(tmp_path)
