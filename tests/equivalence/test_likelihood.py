"""The native backend predicts a text as well as the float32 reference, whatever the KV dtype."""

import functools
from pathlib import Path

import pytest

from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.reference.backend import ReferenceBackend
from octavo.bench.likelihood import Likelihood, measure

TOLERANCE = 0.005
TEXT = Path(__file__).parent.parent / "data" / "frankenstein_excerpt.txt"


@functools.cache
def reference(model_path: Path, max_windows: int | None) -> Likelihood:
    # One thread: BLAS threads that wait for a busy core take longer than they save.
    return measure(
        ReferenceBackend(), model_path, TEXT.read_text("utf-8"), kv_dtype="f32",
        max_windows=max_windows, num_threads=1,
    )  # fmt: skip


def compare(model_path: Path, kv_dtype: str, max_windows: int | None) -> None:
    pytest.importorskip("octavo._native", reason="the native module is not built")
    expected = reference(model_path, max_windows)
    found = measure(
        CpuBackend(), model_path, TEXT.read_text("utf-8"), kv_dtype=kv_dtype,
        max_windows=max_windows, num_threads=2,
    )  # fmt: skip
    assert found.num_scored == expected.num_scored >= 1024
    assert 2.0 < expected.mean_nll < 4.0  # English prose under a small model
    assert found.mean_nll == pytest.approx(expected.mean_nll, rel=TOLERANCE)


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_one_window(model_path: Path, kv_dtype: str) -> None:
    compare(model_path, kv_dtype, 1)


@pytest.mark.full
@pytest.mark.parametrize("kv_dtype", ["f32", "bf16", "int8"])
def test_the_whole_text(model_path: Path, kv_dtype: str) -> None:
    compare(model_path, kv_dtype, None)
