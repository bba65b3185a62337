"""The native backend predicts a text as well as llama.cpp does with the same file, in every element
type that files are written in.

llama.cpp's values are kept in tests/golden/llama_cpp_likelihood.json, which says how they were made
(benchmarks/compare/likelihood.py); the files are made anew, from the default model.
"""

import json
from pathlib import Path

import pytest

from octavo.backends.cpu.backend import CpuBackend
from octavo.bench.likelihood import measure
from octavo.weights.convert import FILE_TYPES
from octavo.weights.model_file import open_model
from tools.make_variants import make_variant

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "tests/golden/llama_cpp_likelihood.json").read_text("utf-8"))
TOLERANCE = 0.01
TYPES = sorted(set(FILE_TYPES) - {"F32"})  # F32 is the float32 reference's test

pytestmark = pytest.mark.full


@pytest.mark.parametrize("quant", TYPES)
def test_within_one_percent_of_llama_cpp(quant: str, model_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("octavo._native", reason="the native module is not built")
    text = (ROOT / GOLDEN["text"]).read_text("utf-8")
    with open_model(model_path) as model:
        path = make_variant(model, tmp_path, quant)
    for kv_dtype in ("bf16", "int8"):
        found = measure(CpuBackend(), path, text, kv_dtype=kv_dtype, window=GOLDEN["window"],
                        max_windows=GOLDEN["max_windows"], num_threads=2)
        assert found.num_scored >= 512
        assert found.mean_nll == pytest.approx(GOLDEN["mean_nll"][quant], rel=TOLERANCE)
