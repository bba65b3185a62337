"""What a quantized folder is refused for: one line that names the field or tensor and the value."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.errors import ModelLoadError, UnsupportedModelError
from octavo.weights.hf_quant_config import quantization_from_hf
from octavo.weights.model_file import open_model
from tests.weights.quantized_builders import Case, Parts, save_quantized
from tools import quantized_layouts as layouts

PROJ = "model.layers.0.self_attn.q_proj"
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}


def compressed(**changes: Any) -> dict[str, Any]:
    return layouts.compressed_config(4, group_size=32) | changes


def group(part: str, **changes: Any) -> dict[str, Any]:
    """Settings whose group has other values in `part` ("": in the group itself)."""
    made = layouts.compressed_config(4, group_size=32, activations=True)
    target = made["config_groups"]["group_0"]
    (target[part] if part else target).update(changes)
    return made


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("awq", "key quantization_config: is 'awq', expected a dictionary"),
        ({}, "key quantization_config.quant_method: is missing"),
        ({"quant_method": "bitsandbytes"}, "quant_method: 'bitsandbytes' is not supported"),
        ({"quant_method": "fp8"}, "'fp8' is not supported (supported: awq, gptq, compressed-"),
        ({"quant_method": 4}, "quant_method: is 4, expected a string"),
        (AWQ | {"bits": 3}, "bits: 3 is not supported (supported for awq: 4)"),
        (AWQ | {"version": "gemv"}, "version: 'gemv' is not supported (supported: gemm)"),
        (AWQ | {"group_size": 0}, "group_size: is 0, expected a positive integer"),
        (GPTQ | {"bits": 3}, "bits: 3 is not supported (supported for gptq: 4, 8)"),
        (GPTQ | {"bits": None}, "bits: is missing"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format: 'marlin' is not supported"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format: True is not supported"),
        (GPTQ | {"pack_dtype": "int16"}, "pack_dtype: 'int16'"),
        (compressed(format="marlin-24"), "format: 'marlin-24' is not supported (supported: pack-"),
        (compressed(format="nvfp4-pack-quantized"), "format: 'nvfp4-pack-quantized'"),
        (compressed(format="float-quantized"), "format: 'float-quantized' is not supported"),
        (compressed(sparsity_config={"format": "sparse-24-bitmask"}),
         "sparsity_config.format: 'sparse-24-bitmask' is not supported"),
        (compressed(kv_cache_scheme={"num_bits": 8}), "key quantization_config.kv_cache_scheme"),
        (compressed(transform_config={"config_groups": {"R1": {}}}), "transform_config"),
        (compressed(config_groups={}), "config_groups: is {}, expected a dictionary"),
        (compressed(config_groups={"g": 1}), "config_groups.g: is 1, expected a dictionary"),
        (compressed(quantization_status="calibration"), "quantization_status: 'calibration'"),
        (group("", targets="Linear"), "config_groups.group_0.targets: is 'Linear'"),
        (group("", targets=["re:("]), "targets: 're:(' is no pattern"),
        (group("", output_activations={"num_bits": 8}), "group_0.output_activations"),
        (group("", weights=None), "group_0.weights: None is not supported"),
        (group("weights", type="float"), "weights.type: 'float' is not supported (supported: int"),
        (group("weights", num_bits=2), "weights.num_bits: 2 is not supported (supported: 4, 8)"),
        (group("weights", strategy="block"), "weights.strategy: 'block'"),
        (group("input_activations", dynamic=False),
         "config_groups.group_0.input_activations.dynamic: False is not supported"),
        (group("input_activations", dynamic="local"), "input_activations.dynamic: 'local'"),
        (group("input_activations", type="float"), "input_activations.type: 'float'"),
        (group("input_activations", num_bits=4), "input_activations.num_bits: 4"),
    ],
)  # fmt: skip
def test_settings(settings: Any, words: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        quantization_from_hf(Path("/m/config.json"), settings, key="quantization_config")
    message = str(caught.value)
    assert words in message and message.startswith("/m/config.json: ") and "\n" not in message


def put(part: str, values: np.ndarray) -> Callable[[Parts], None]:
    def change(tensors: Parts) -> None:
        tensors[f"{PROJ}.{part}"] = layouts.stored(values)

    return change


def drop(part: str) -> Callable[[Parts], None]:
    return lambda tensors: tensors.pop(f"{PROJ}.{part}") and None


def poison(part: str, value: float) -> Callable[[Parts], None]:
    def change(tensors: Parts) -> None:
        tensors[f"{PROJ}.{part}"][2].flat[5] = value

    return change


CT = Case("pack-quantized")
W8 = Case("int-quantized", bits=8, group_size=-1)
I4 = np.int32


@pytest.mark.parametrize(
    ("case", "change", "words"),
    [
        (Case("awq"), drop("scales"), "scales: is missing"),
        (Case("awq"), drop("qzeros"), "qzeros: is missing"),
        (Case("awq"), drop("qweight"), "qweight: is missing"),
        (Case("awq"), put("qweight", np.zeros((64, 8), np.float32)), "qweight: dtype is F32"),
        (Case("awq"), put("qweight", np.zeros((8, 64), I4)), "qweight: has shape [8, 64], exp"),
        (Case("awq"), put("scales", np.ones((3, 64), np.float16)), "expected 2 groups"),
        (Case("awq"), put("scales", np.ones(64, np.float16)), "scales: has shape [64]"),
        (Case("awq"), put("scales", np.ones((2, 64), I4)), "scales: dtype is I32, expected F32"),
        (Case("awq"), put("qzeros", np.zeros((2, 9), I4)), "qzeros: has shape [2, 9]"),
        (Case("awq"), poison("scales", np.inf), "scales: has values that are not finite"),
        (Case("awq"), put("weight", np.zeros((64, 64), np.float16)), "is there twice"),
        (Case("gptq"), put("qweight", np.zeros((7, 64), I4)), "which is not 4 bits a weight"),
        (Case("gptq"), put("qweight", np.zeros((16, 64), I4)), "which is not 4 bits a weight"),
        (Case("gptq"), put("qweight", np.zeros((8, 63), I4)), "qweight: has shape [8, 63]"),
        (Case("gptq"), put("g_idx", np.zeros(63, I4)), "g_idx: has shape [63]"),
        (Case("gptq"), put("g_idx", np.full(64, 2, I4)), "g_idx: has values outside 0 to 1"),
        (Case("gptq"), poison("scales", np.nan), "scales: has values that are not finite"),
        (CT, drop("weight_scale"), "weight_scale: is missing"),
        (CT, drop("weight_zero_point"), "weight_zero_point: is missing, and the settings say"),
        (CT, drop("weight_packed"), "weight"),
        (CT, put("weight_shape", np.array([64, 65], np.int64)), "weight_shape: says [64, 65]"),
        (CT, put("weight_packed", np.zeros((64, 9), I4)), "which is not 4 bits a weight"),
        (CT, put("weight_packed", np.zeros((63, 8), I4)), "weight_packed: has shape [63, 8]"),
        (CT, put("weight_scale", np.ones((64, 1), np.float16)), "expected 2 groups"),
        (CT, put("weight_scale", np.ones((32, 2), np.float16)), "weight_scale: has shape [32, 2]"),
        (CT, put("weight_zero_point", np.ones((64, 2), I4)), "weight_zero_point: has shape"),
        (W8, put("weight", np.zeros((64, 32), np.int8)), "weight: has shape [64, 32]"),
        (W8, drop("weight_scale"), "weight_scale: is missing"),
        (W8, put("weight_zero_point", np.zeros((64, 2), np.int8)), "weight_zero_point: has shape"),
    ],
)
def test_tensors(
    tmp_path: Path, case: Case, change: Callable[[Parts], None], words: str
) -> None:
    save_quantized(tmp_path, case, change=change)
    with pytest.raises(ModelLoadError) as caught:
        open_model(tmp_path)
    message = str(caught.value)
    assert words in message and f"{PROJ}." in message and "\n" not in message
    assert message.startswith(str(tmp_path))


def test_a_module_no_group_targets(tmp_path: Path) -> None:
    settings = CT.config()
    settings["config_groups"]["group_0"]["targets"] = ["re:.*mlp.*"]
    save_quantized(tmp_path, CT, settings=settings)
    with pytest.raises(ModelLoadError, match="no group of config_groups targets its module"):
        open_model(tmp_path)


def test_a_group_without_its_parts_is_refused_not_lost(tmp_path: Path) -> None:
    """Tensors that no format here explains, such as static activation scales."""
    def change(tensors: Parts) -> None:
        tensors[f"{PROJ}.input_scale"] = layouts.stored(np.ones(1, np.float32))

    save_quantized(tmp_path, W8, change=change)
    with pytest.raises(UnsupportedModelError, match=r"q_proj\.input_scale: is not part"):
        open_model(tmp_path)
