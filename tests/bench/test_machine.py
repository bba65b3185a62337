"""The machine probe and the roofline built on it. Nothing here depends on how fast the machine is.
"""

import json
import math
from pathlib import Path

import pytest

from octavo.bench.machine_probe import (
    MB,
    MachineProbe,
    Rate,
    _NumpyProbe,
    load_probe,
    merge_probes,
    probe_from_json,
    probe_machine,
)
from octavo.bench.roofline import decode_bound, model_cost, prefill_bound
from octavo.bench.tables import machine_tables
from octavo.config_resolve import EngineArgs
from octavo.engine.factory import resolve_args
from octavo.errors import ConfigError
from octavo.testing.toy_model import tiny_llama

_PROBE = MachineProbe(
    cpu="a", threads=2, barrier_s=1e-6, wake_s=1e-5, load_average=(0.0, 0.0, 0.0), measured_at="",
    rates=(
        Rate("int8", "generic", 2, 4e9, 3e9), Rate("int8", "avx512", 2, 8e9, 1e9),
        Rate("f32", "generic", 2, 2e9, 2e9), Rate("f32", "generic", 1, 1e9, 1e9),
        Rate("read", "generic", 2, 9e9, 8e9, MB), Rate("read", "generic", 2, 9e9, 4e9, 16 * MB),
    ))


@pytest.mark.parametrize("threads", [1, 2])
def test_probe_of_this_machine(threads: int) -> None:
    probe = probe_machine(threads=threads, samples=2, footprints_mb=(1, 2), sample_ms=0.2)
    names = {(rate.name, rate.threads) for rate in probe.rates}
    for name in ("f32", "read"):
        assert (name, 1) in names
    assert all(0 < rate.median <= rate.best < math.inf for rate in probe.rates)
    assert {rate.footprint for rate in probe.rates if rate.name == "read"} == {MB, 2 * MB}
    assert probe.peak("bf16", threads) > 0
    assert probe.bandwidth(3 * MB, threads) > 0
    assert probe_from_json(json.loads(json.dumps(probe.to_json()))).rates == probe.rates
    assert len(machine_tables(probe)) >= 2


def test_numpy_stands_in() -> None:
    probe = _NumpyProbe(2)
    assert len(probe.dot("numpy", "f32", 1)) == 2 and min(probe.dot("numpy", "f32", 1)) > 0
    assert min(probe.read("numpy", MB, 1)) > 0


def test_lookups() -> None:
    assert _PROBE.peak("int8", 2) == 8e9  # the best sample of the best form
    assert _PROBE.peak("bf16", 2) == 2e9  # no bf16 instruction: as f32
    assert _PROBE.peak("f32", 1) == 1e9 and _PROBE.peak("f32", 8) == 2e9
    assert _PROBE.bandwidth(1, 2) == 8e9 and _PROBE.bandwidth(1 << 40, 2) == 4e9
    assert _PROBE.bandwidth(4 * MB, 2) == pytest.approx(6e9)  # halfway in the logarithm
    empty = MachineProbe("a", 1, (), None, None, None, "")
    with pytest.raises(ConfigError):
        empty.peak("int8", 1)
    with pytest.raises(ConfigError):
        empty.bandwidth(MB, 1)


def test_two_probes_of_one_run() -> None:
    later = MachineProbe("a", 2, (
        Rate("int8", "avx512", 2, 7e9, 6e9), Rate("read", "generic", 2, 9e9, 9e9, MB),
        Rate("read", "avx512", 2, 9e9, 5e9, 16 * MB)), None, None, None, "")
    both = merge_probes(_PROBE, later)
    assert len(both.rates) == len(_PROBE.rates) + 1
    assert Rate("int8", "avx512", 2, 8e9, 6e9) in both.rates
    assert both.bandwidth(MB, 2) == 9e9 and both.bandwidth(16 * MB, 2) == 5e9


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "octavo-machine/1"}',
                                  '{"format": "octavo-machine/1", "rates": [{"x": 1}]}'])
def test_bad_probe_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "machine.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="machine probe"):
        load_probe(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_probe(tmp_path / "none")


@pytest.mark.parametrize("tied", [False, True])
def test_cost_and_bounds_of_the_tiny_model(tmp_path: Path, tied: bool) -> None:
    tiny = tiny_llama(tie_word_embeddings=tied)
    config = resolve_args(EngineArgs(model=str(tiny.save(tmp_path / "tiny")), num_blocks=64,
                                     kv_cache_dtype="bf16")).config
    cost = model_cost(config)
    # 2 layers: q 128x64, k and v 64x64 each, o 64x128, gate, up and down 128x64; head vocab x 64
    layer = 2 * (128 * 64 + 2 * 64 * 64 + 64 * 128 + 3 * 128 * 64)
    vocab = tiny.config.vocab_size
    assert cost.layer_macs == {"f32": layer} and cost.head_macs == {"f32": vocab * 64}
    assert cost.attention_macs == 2 * 2 * 4 * 32
    assert cost.kv_bytes_per_token == 2 * 2 * 2 * 32 * 2
    assert 4 * (layer + vocab * 64) <= cost.weight_bytes < 4.6 * (layer + vocab * 64)
    one = decode_bound(cost, _PROBE, threads=2, sequences=1, context=100)
    assert one.memory_s == pytest.approx((cost.weight_bytes + 100 * 512) / 8e9)
    attention = cost.attention_macs * 100 / 2e9
    assert one.compute_s == pytest.approx((layer + vocab * 64) / 2e9 + attention)
    many = decode_bound(cost, _PROBE, threads=2, sequences=8, context=100)
    assert many.compute_s == pytest.approx(8 * one.compute_s)
    prompt = prefill_bound(cost, _PROBE, threads=2, tokens=10, step_tokens=4)
    assert prompt.memory_s == pytest.approx(3 * cost.weight_bytes / 8e9)
    assert prompt.compute_s == pytest.approx(
        (10 * layer + vocab * 64 + 55 * cost.attention_macs) / 2e9)
    assert prompt.seconds == max(prompt.memory_s, prompt.compute_s)
