"""The native executor: near the reference, bit-equal however a run is cut, safe on bad input."""

import numpy as np
import pytest

from octavo.backends.reference.backend import ReferenceBackend
from octavo.backends.seam import KVOptions
from octavo.errors import ConfigError
from octavo.graph.step_arrays import StepArrays
from octavo.testing.forward import Chunk, fill_step, logits_of
from octavo.testing.toy_model import TinyModel, tiny_llama
from tests.backends.cpu.running import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    limits_of,
    load_cpu,
    run_mixed,
    sequences,
)
from tests.parity.kernels import assert_same_bits, native

QUANTS = ("F32", "BF16", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
# Root mean square error against that of the logits. Quantized weights are the same in both; what
# differs is int8 (or bf16) activations and, for Q6_K, bf16 weights.
TOLERANCE = {"F32": 1e-5, "F16": 1e-5, "BF16": 0.02}
INT8_TOLERANCE = 0.05


def error_of(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(np.square(found - expected).mean() / np.square(expected).mean()))


def odd_model(quant: str = "F32") -> TinyModel:
    """Sizes that divide nothing: head size 20, 3 query heads a KV head, 24 hidden columns more."""
    return tiny_llama(
        3, quant=quant, hidden_size=88, num_heads=6, num_kv_heads=2, head_dim=20,
        intermediate_size=72, tie_word_embeddings=True,
    )  # fmt: skip


def reference_logits(model: TinyModel, token_ids: list[int], kv: str = "f32") -> np.ndarray:
    loaded = ReferenceBackend().load(
        model.graph, model.weights, limits=limits_of(model),
        kv=KVOptions(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, dtype=kv),
    )  # fmt: skip
    return logits_of(loaded, token_ids, limits=limits_of(model), block_size=BLOCK_SIZE)


def cpu_logits(model: TinyModel, token_ids: list[int], **options) -> np.ndarray:
    loaded = load_cpu(model, **options)
    out = logits_of(loaded, token_ids, limits=limits_of(model), block_size=BLOCK_SIZE)
    loaded.close()
    return out


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_near_the_reference(quant: str, tied: bool) -> None:
    model = tiny_llama(1, quant=quant, tie_word_embeddings=tied)
    (token_ids,) = sequences(1, [100], model.graph.vocab_size)
    error = error_of(cpu_logits(model, token_ids), reference_logits(model, token_ids))
    assert error < TOLERANCE.get(quant, INT8_TOLERANCE)


@pytest.mark.parametrize("quant", ["Q4_K", "Q5_K", "Q6_K"])
def test_super_block_types_are_near_the_reference(quant: str) -> None:
    model = tiny_llama(
        1, quant=quant, hidden_size=256, num_heads=8, num_kv_heads=2, intermediate_size=512
    )
    (token_ids,) = sequences(1, [60], model.graph.vocab_size)
    error = error_of(cpu_logits(model, token_ids), reference_logits(model, token_ids))
    assert error < INT8_TOLERANCE


def test_mixed_storage_types_in_one_layer() -> None:
    """Q, K and V (gate and up, too) may need activations of different kinds."""
    at = "layers.0"
    overrides = {
        f"{at}.self_attn.k_proj.weight": "BF16", f"{at}.self_attn.v_proj.weight": "F32",
        f"{at}.mlp.up_proj.weight": "F32", f"{at}.self_attn.o_proj.weight": "BF16",
        f"{at}.mlp.down_proj.weight": "F32",
    }  # fmt: skip
    model = tiny_llama(1, quant="Q8_0", overrides=overrides)
    (token_ids,) = sequences(1, [80], model.graph.vocab_size)
    error = error_of(cpu_logits(model, token_ids), reference_logits(model, token_ids))
    assert error < INT8_TOLERANCE


@pytest.mark.parametrize("window", [None, 9])
def test_odd_sizes_and_a_sliding_window(window: int | None) -> None:
    model = odd_model() if window is None else tiny_llama(2, sliding_window=window)
    (token_ids,) = sequences(1, [90], model.graph.vocab_size)
    error = error_of(cpu_logits(model, token_ids), reference_logits(model, token_ids))
    assert error < TOLERANCE["F32"]


@pytest.mark.parametrize("kv", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("make", [lambda: tiny_llama(4, quant="Q4_1"), odd_model])
def test_bits_do_not_depend_on_chunks_batch_or_threads(kv: str, make) -> None:
    model = make()
    limits = limits_of(model)
    prompts = sequences(9, [1, 40, 17, 130, 300], model.graph.vocab_size)
    alone = []
    loaded = load_cpu(model, kv=kv, threads=1)
    for prompt in prompts:
        alone.append(run_mixed(loaded, limits, [prompt], [limits.max_tokens])[0])
    loaded.close()
    for threads, chunk_sizes in ((1, [7]), (2, [1, 16, 33]), (5, [64, 3])):
        loaded = load_cpu(model, kv=kv, threads=threads)
        for one, mixed in zip(alone, run_mixed(loaded, limits, prompts, chunk_sizes), strict=True):
            assert_same_bits(one, mixed)
        loaded.close()


@pytest.mark.skipif(len(native.kernel_isas()) < 2, reason="this CPU has the generic code only")
@pytest.mark.parametrize("kv", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("quant", ["Q4_0", "Q4_1", "Q8_0", "F32"])
def test_isas_agree_bit_for_bit(
    kv: str, quant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_llama(5, quant=quant)
    (token_ids,) = sequences(1, [150], model.graph.vocab_size)
    found = {}
    for isa in native.kernel_isas():
        monkeypatch.setenv("OCTAVO_CPU_ISA", isa)
        found[isa] = cpu_logits(model, token_ids, kv=kv)
    for logits in found.values():
        assert_same_bits(found["generic"], logits)


def test_an_unknown_isa_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CPU_ISA", "sse9")
    with pytest.raises(ConfigError, match="OCTAVO_CPU_ISA is 'sse9'"):
        load_cpu(tiny_llama())


def test_an_isa_of_another_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = "avx2" if "neon" in native.kernel_isas() else "neon"
    monkeypatch.setenv("OCTAVO_CPU_ISA", foreign)
    with pytest.raises(ConfigError, match=f"this CPU or build has no {foreign}"):
        load_cpu(tiny_llama())


def test_the_forced_isa_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CPU_ISA", "generic")
    facts = load_cpu(tiny_llama(quant="Q4_1")).describe()
    assert facts["isa"] == "generic"
    assert facts["layers.0.mlp.down_proj.weight"] == "q4+min (from Q4_1)"
    assert facts["norm.weight"] == "f32 (from F32)"


def test_a_copied_block_serves_another_sequence() -> None:
    model = tiny_llama(6)
    limits = limits_of(model)
    (token_ids,) = sequences(1, [40], model.graph.vocab_size)
    loaded = load_cpu(model, kv="int8")
    arrays = StepArrays(limits)
    expected = logits_of(loaded, token_ids, limits=limits, block_size=BLOCK_SIZE)
    loaded.copy_slots([(0, 50, 16), (1, 51, 16), (2, 52, 4)])
    last = [Chunk(token_ids=token_ids[36:], start=36, block_ids=[[50, 51, 52]])]
    fill_step(arrays, last, block_size=BLOCK_SIZE)
    out = loaded.step(arrays, want_logits=True)
    assert out.logits is not None and out.num_native_calls == 1
    assert_same_bits(out.logits, expected[36:])


def greedy_step(model: TinyModel, num_logprobs: int):
    limits = limits_of(model)
    loaded = load_cpu(model)
    arrays = StepArrays(limits)
    prompts = sequences(3, [5, 20], model.graph.vocab_size)
    chunks = [
        Chunk(token_ids=p, start=0, block_ids=[[2 * i, 2 * i + 1]], rows=[len(p) - 1])
        for i, p in enumerate(prompts)
    ]
    fill_step(arrays, chunks, block_size=BLOCK_SIZE)
    arrays.sampling.num_logprobs[:3] = num_logprobs
    return loaded.step(arrays, want_logits=True)


@pytest.mark.parametrize("num_logprobs", [0, 5, 200])
def test_sampling_results_come_back(num_logprobs: int) -> None:
    """200 alternatives are more than the table that is kept from step to step holds."""
    out = greedy_step(tiny_llama(7), num_logprobs)
    assert out.logits is not None
    np.testing.assert_array_equal(out.sampled, out.logits.argmax(axis=1))
    np.testing.assert_array_equal(out.rank, 1)
    logits = out.logits.astype(np.float64)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(out.logprob, logprobs.max(axis=1), atol=1e-5)
    assert out.top_ids.shape == (3, num_logprobs)
    for row in range(3):
        order = np.argsort(-logits[row], kind="stable")[:num_logprobs]
        np.testing.assert_array_equal(out.top_ids[row], order)


@pytest.mark.parametrize("isa", native.kernel_isas())
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("vocab", [300, 4096])
def test_the_head_hands_the_sampler_what_it_would_find_itself(
    isa: str, threads: int, vocab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy and drawn rows, with and without what changes logits, against sampling the logits that
    come back; more rows than the 64 in flight at once. Without logits wanted, greedy rows keep next
    to none: the same results."""
    monkeypatch.setenv("OCTAVO_CPU_ISA", isa)
    model = tiny_llama(6, quant="Q8_0", vocab_size=vocab)
    limits = limits_of(model)
    (token_ids,) = sequences(1, [90], vocab)
    arrays = StepArrays(limits)
    blocks = [list(range(-(-len(token_ids) // BLOCK_SIZE)))]
    fill_step(arrays, [Chunk(token_ids=token_ids, start=0, block_ids=blocks)],
              block_size=BLOCK_SIZE)
    rng, rows, sampling = np.random.default_rng(vocab), len(token_ids), arrays.sampling
    sampling.temperature[:rows] = rng.choice([0, 0, 0.7, 1.5], rows)
    sampling.top_k[:rows] = rng.choice([0, 40], rows)
    sampling.top_p[:rows] = rng.choice([1, 0.9], rows)
    sampling.seed[:rows] = rng.integers(0, 1 << 63, rows, dtype=np.uint64)
    sampling.position[:rows] = np.arange(rows)
    sampling.num_logprobs[:rows] = rng.choice([-1, -1, 3], rows)
    sampling.mask_index[:rows] = rng.choice([-1, -1, 0], rows)
    sampling.masks[0] = rng.integers(0, 1 << 32, sampling.masks.shape[1], dtype=np.uint32)
    sampling.bias_start[1 : rows + 1] = np.cumsum(rng.choice([0, 0, 3], rows))
    used = int(sampling.bias_start[rows])
    sampling.bias_ids[:used] = rng.integers(0, vocab, used)
    sampling.bias_values[:used] = rng.choice([-np.inf, 2.5], used)
    loaded = load_cpu(model, threads=threads)
    logits = loaded.step(arrays, want_logits=True).logits
    assert logits is not None
    for want_logits in (True, False):
        out = loaded.step(arrays, want_logits=want_logits)
        results = (out.sampled, out.logprob, out.rank, out.top_ids, out.top_logprobs)
        alone = [np.zeros_like(a) for a in results]
        native.sample_rows(logits.copy(), sampling, *alone)
        for found, expected in zip(results, alone, strict=True):
            assert_same_bits(found, expected)
    loaded.close()


def test_more_logit_rows_than_a_tile_holds() -> None:
    """Prompt logprobs ask for logits of every row: more than the 64 that are in flight at once."""
    model = tiny_llama(8)
    limits = limits_of(model)
    (token_ids,) = sequences(1, [150], model.graph.vocab_size)
    loaded = load_cpu(model)
    whole = logits_of(loaded, token_ids, limits=limits, block_size=BLOCK_SIZE)
    parts = logits_of(loaded, token_ids, limits=limits, block_size=BLOCK_SIZE, chunk_size=10)
    assert_same_bits(whole, parts)


def test_an_empty_step_does_nothing() -> None:
    loaded = load_cpu(tiny_llama())
    out = loaded.step(StepArrays(limits_of(tiny_llama())))
    assert out.sampled.size == 0


def test_closing_twice_is_fine() -> None:
    loaded = load_cpu(tiny_llama())
    loaded.close()
    loaded.close()


BAD = {
    "token id": ("token_ids", 0, 1 << 20, "vocabulary"),
    "negative token id": ("token_ids", 3, -1, "vocabulary"),
    "position": ("positions", 0, 1 << 20, "position table"),
    "position gap": ("positions", 2, 9, "consecutive"),
    "slot": ("slot_mapping", (0, 1), NUM_BLOCKS * BLOCK_SIZE, "KV cache"),
    "block": ("block_tables", (0, 0, 0), NUM_BLOCKS, "not a block"),
    "negative block": ("block_tables", (0, 0, 0), -1, "not a block"),
    "logits row": ("logits_indices", 0, 6, "token row"),
    "context": ("context_len", 0, 7, "context_len"),
    "query start": ("query_start_loc", 1, 9, "query_start_loc"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_index_out_of_range_is_refused(case: str) -> None:
    field, at, value, message = BAD[case]
    loaded = load_cpu(tiny_llama())
    arrays = StepArrays(limits_of(tiny_llama()))
    fill_step(
        arrays, [Chunk(token_ids=[1, 2, 3, 4, 5, 6], start=0, block_ids=[[0]])],
        block_size=BLOCK_SIZE,
    )  # fmt: skip
    loaded.step(arrays)
    getattr(arrays, field)[at] = value
    with pytest.raises(ValueError, match=message):
        loaded.step(arrays)


BAD_SAMPLING = {
    "mask": ("mask_index", 0, 1000, "mask row"),
    "target": ("target_ids", 0, 1 << 20, "vocabulary"),
    "penalty id": ("penalty_ids", 0, 1 << 20, "vocabulary"),
    "penalty start": ("penalty_start", 1, 1 << 20, "ascend"),
    "bias id": ("bias_ids", 0, -2, "vocabulary"),
    "report id": ("report_ids", 0, 1 << 20, "vocabulary"),
    "report start": ("report_start", 1, 1 << 20, "ascend"),
}


@pytest.mark.parametrize("case", BAD_SAMPLING)
def test_a_bad_sampling_index_is_refused(case: str) -> None:
    field, at, value, message = BAD_SAMPLING[case]
    loaded = load_cpu(tiny_llama())
    arrays = StepArrays(limits_of(tiny_llama()))
    fill_step(arrays, [Chunk(token_ids=[1], start=0, block_ids=[[0]])], block_size=BLOCK_SIZE)
    for start in ("penalty_start", "bias_start", "report_start"):
        getattr(arrays.sampling, start)[1] = 1
    loaded.step(arrays)
    getattr(arrays.sampling, field)[at] = value
    with pytest.raises(ValueError, match=message):
        loaded.step(arrays)


def test_counts_past_the_limits_are_refused() -> None:
    loaded = load_cpu(tiny_llama())
    arrays = StepArrays(limits_of(tiny_llama()))
    arrays.num_tokens = 161
    with pytest.raises(ValueError, match="max_tokens"):
        loaded.step(arrays)
