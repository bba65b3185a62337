"""Logits against another implementation's (tools/make_goldens.py), and proof that the comparison
sees the mistakes it is there for."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.reference.backend import ReferenceBackend
from octavo.backends.seam import Backend, KVOptions
from octavo.graph.step_arrays import StepLimits
from octavo.models.registry import record
from octavo.testing.forward import logits_of
from octavo.weights.model_file import ModelConfig, ModelFile, open_model

GOLDEN = Path(__file__).parent.parent / "golden"
MODELS = ("llama", "llama3_rope", "mistral", "qwen2", "qwen3")
BLOCK_SIZE = 16
TOLERANCE = 1e-4
SEEN = 1e-2  # the least error that a mistake must cause


def reference() -> Backend:
    return ReferenceBackend()


def cpu() -> Backend:
    pytest.importorskip("octavo._native", reason="the native module is not built")
    from octavo.backends.cpu.backend import CpuBackend

    return CpuBackend()


class Changed:
    """A model file with some tensors replaced."""

    def __init__(self, file: ModelFile, change: Callable[[str, np.ndarray], np.ndarray]) -> None:
        self._file = file
        self._change = change

    def quant_of(self, name: str) -> str:
        return self._file.tensors[name].quant

    def f32(self, name: str) -> np.ndarray:
        return self._change(name, self._file.f32(name))

    def raw(self, name: str) -> np.ndarray:
        values = np.ascontiguousarray(self.f32(name), np.float32)
        return values.view(np.uint8).reshape(-1 if values.ndim == 1 else values.shape[0], -1)

    def release(self, name: str) -> None:
        pass


def same(name: str, values: np.ndarray) -> np.ndarray:
    return values


def error_of(
    make: Callable[[], Backend],
    name: str,
    *,
    config: Callable[[ModelConfig], ModelConfig] = lambda config: config,
    weights: Callable[[str, np.ndarray], np.ndarray] = same,
    chunk_size: int | None = None,
) -> float:
    """Largest difference from the golden logits over all positions."""
    golden = np.load(GOLDEN / name / "logits.npz")
    token_ids = golden["token_ids"].tolist()
    with open_model(GOLDEN / name) as file:
        graph = record(config(file.config), set(file.tensors))
        limits = StepLimits(
            max_tokens=256, max_seqs=2, max_rows=256, max_blocks_per_seq=16,
            vocab_size=graph.vocab_size,
        )  # fmt: skip
        model = make().load(
            graph,
            Changed(file, weights),
            kv=KVOptions(block_size=BLOCK_SIZE, num_blocks=32, dtype="f32"),
            limits=limits,
            num_threads=1,
        )
        logits = logits_of(
            model, token_ids, limits=limits, block_size=BLOCK_SIZE, chunk_size=chunk_size
        )
        model.close()
    return float(np.abs(logits - golden["logits"]).max())


@pytest.mark.parametrize("make", [reference, cpu])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunk_size", [None, 33])
def test_logits_equal_the_golden_ones(
    make: Callable[[], Backend], name: str, chunk_size: int | None
) -> None:
    assert error_of(make, name, chunk_size=chunk_size) <= TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_goldens_are_worth_comparing(name: str) -> None:
    golden = np.load(GOLDEN / name / "logits.npz")
    assert np.ptp(golden["logits"], axis=1).min() >= 5
    assert sum(file.stat().st_size for file in (GOLDEN / name).iterdir()) < 1 << 20


def with_rope(**changes: float) -> Callable[[ModelConfig], ModelConfig]:
    return lambda config: dataclasses.replace(
        config, rope=dataclasses.replace(config.rope, **changes)
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_rope_theta_is_seen(name: str) -> None:
    assert error_of(reference, name, config=with_rope(theta=20000.0)) > SEEN


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_rope_style_is_seen(name: str) -> None:
    assert error_of(reference, name, config=with_rope(style="interleaved")) > SEEN


@pytest.mark.parametrize(
    "changes",
    [{"factor": 4.0}, {"low_freq_factor": 2.0}, {"high_freq_factor": 8.0},
     {"original_max_position": 64}, {"scaling": "linear"}, {"scaling": None}],
)  # fmt: skip
def test_a_wrong_rope_scaling_is_seen(changes: dict) -> None:
    assert error_of(reference, "llama3_rope", config=with_rope(**changes)) > SEEN


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_eps_is_seen(name: str) -> None:
    def ten_times(config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, rms_norm_eps=config.rms_norm_eps * 10)

    assert error_of(reference, name, config=ten_times) > SEEN


@pytest.mark.parametrize("name", MODELS)
def test_a_wrong_head_mapping_is_seen(name: str) -> None:
    """KV heads swapped: query head h then reads the other group's K and V."""

    def swap(tensor: str, values: np.ndarray) -> np.ndarray:
        if ".k_proj." in tensor or ".v_proj." in tensor:
            return np.concatenate(np.split(values, 2)[::-1])
        return values

    assert error_of(reference, name, weights=swap) > SEEN


def test_wrong_qk_norm_weights_are_seen() -> None:
    for part in ("q_norm", "k_norm"):

        def ones(tensor: str, values: np.ndarray, part: str = part) -> np.ndarray:
            return values[::-1].copy() if part in tensor else values

        assert error_of(reference, "qwen3", weights=ones) > SEEN


def test_missing_biases_are_seen() -> None:
    def zero(tensor: str, values: np.ndarray) -> np.ndarray:
        return values * 0 if tensor.endswith(".bias") else values

    assert error_of(reference, "qwen2", weights=zero) > SEEN


@pytest.mark.parametrize("window", [None, 23, 25])
def test_a_wrong_window_is_seen(window: int | None) -> None:
    def other(config: ModelConfig) -> ModelConfig:
        return dataclasses.replace(config, sliding_window=window)

    assert error_of(reference, "mistral", config=other) > SEEN
