"""The reference backend: a sequence's bits are its own, and KV is kept as its dtype says."""

import numpy as np
import pytest

from octavo.backends.reference import attention, blas_threads, functions, matmul
from octavo.backends.reference.backend import ReferenceBackend, ReferenceModel
from octavo.backends.reference.kv_cache import KVCache
from octavo.backends.seam import KVOptions
from octavo.graph.ops import KVStoreSpec, RopeSpec, Route
from octavo.graph.step_arrays import StepArrays, StepLimits
from octavo.testing.forward import Chunk, fill_step, logits_of, run_step
from octavo.testing.toy_model import TinyModel, tiny_llama

BLOCK_SIZE = 16
NUM_BLOCKS = 128
LIMITS = StepLimits(
    max_tokens=700, max_seqs=16, max_rows=700, max_blocks_per_seq=64, vocab_size=260
)
DTYPES = ("f32", "bf16", "int8")


def load(tiny: TinyModel, dtype: str = "f32") -> ReferenceModel:
    kv = KVOptions(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, dtype=dtype)
    return ReferenceBackend().load(tiny.graph, tiny.weights, kv=kv, limits=LIMITS, num_threads=1)


def alone(model: ReferenceModel, text: list[int], chunk_size: int | None = None) -> np.ndarray:
    return logits_of(model, text, limits=LIMITS, block_size=BLOCK_SIZE, chunk_size=chunk_size)


@pytest.mark.parametrize("window", [None, 37])
@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_do_not_change_a_bit(dtype: str, window: int | None) -> None:
    model = load(tiny_llama(sliding_window=window, max_position_embeddings=700), dtype)
    text = np.random.default_rng(1).integers(0, 256, 600).tolist()
    whole = alone(model, text)
    assert np.isfinite(whole).all() and np.ptp(whole) > 5
    for size in (1, 16, 129, 512):
        np.testing.assert_array_equal(alone(model, text[:300], size), whole[:300])
    np.testing.assert_array_equal(alone(model, text, 512), whole)


@pytest.mark.parametrize("dtype", DTYPES)
def test_company_and_slots_do_not_change_a_bit(dtype: str) -> None:
    """Random batches, random chunk sizes, scattered blocks that held other things before."""
    rng = np.random.default_rng(2)
    model, arrays = load(tiny_llama(seed=5), dtype), StepArrays(LIMITS)
    texts = [rng.integers(0, 256, n).tolist() for n in (1, 7, 40, 90, 200, 271)]
    expected = [alone(model, text) for text in texts]
    free = rng.permutation(NUM_BLOCKS).tolist()
    blocks = [[free.pop() for _ in range(-(-len(text) // BLOCK_SIZE))] for text in texts]
    done = [0] * len(texts)
    largest = 0
    while any(d < len(t) for d, t in zip(done, texts, strict=True)):
        chunks, checks = [], []
        for seq in rng.permutation(len(texts)).tolist():
            count = min(int(rng.choice([0, 1, 5, 30, 130])), len(texts[seq]) - done[seq])
            if count:
                part = texts[seq][done[seq] : done[seq] + count]
                chunks.append(Chunk(token_ids=part, start=done[seq], block_ids=[blocks[seq]]))
                checks.append(expected[seq][done[seq] : done[seq] + count])
                done[seq] += count
        if chunks:
            largest = max(largest, len(chunks))
            out = run_step(model, arrays, chunks, block_size=BLOCK_SIZE)
            np.testing.assert_array_equal(out.logits, np.concatenate(checks))
    assert largest >= 4


def test_int8_and_bf16_kv_come_close_to_f32() -> None:
    tiny = tiny_llama(seed=3)
    text = np.random.default_rng(3).integers(0, 256, 120).tolist()
    exact = alone(load(tiny), text)
    for dtype, bound in (("bf16", 0.02), ("int8", 0.04)):
        error = (alone(load(tiny, dtype), text) - exact).std() / exact.std()
        assert 1e-4 < error < bound, (dtype, error)


def test_rows_that_need_no_logits_get_none() -> None:
    model, arrays = load(tiny_llama()), StepArrays(LIMITS)
    text = list(range(50))
    whole = alone(model, text)
    chunk = Chunk(token_ids=text, start=0, block_ids=[[3, 2, 1, 0]], rows=[10, 49])
    fill_step(arrays, [chunk], block_size=BLOCK_SIZE)
    out = model.step(arrays, want_logits=True)
    np.testing.assert_array_equal(out.logits, whole[[10, 49]])
    assert out.sampled.tolist() == whole[[10, 49]].argmax(1).tolist()
    assert model.step(arrays).logits is None


def test_a_step_without_rows_only_writes_kv() -> None:
    model, arrays = load(tiny_llama()), StepArrays(LIMITS)
    text = list(range(40))
    whole = alone(model, text)
    model = load(tiny_llama())
    first = Chunk(token_ids=text[:30], start=0, block_ids=[[0, 1, 2]], rows=[])
    assert run_step(model, arrays, [first], block_size=BLOCK_SIZE).sampled.size == 0
    second = Chunk(token_ids=text[30:], start=30, block_ids=[[0, 1, 2]])
    out = run_step(model, arrays, [second], block_size=BLOCK_SIZE)
    np.testing.assert_array_equal(out.logits, whole[30:])


@pytest.mark.parametrize("dtype", DTYPES)
def test_copied_slots_serve_a_fork(dtype: str) -> None:
    """Two sequences share block 0; the second continues on a copy of half of block 1."""
    model, arrays = load(tiny_llama(), dtype), StepArrays(LIMITS)
    text = list(range(40, 66))
    ends = [[1, 2, 3, 4], [9, 8, 7, 6]]
    expected = [alone(model, text + end)[len(text) :] for end in ends]
    prefix = Chunk(token_ids=text, start=0, block_ids=[[20, 21]], rows=[])
    run_step(model, arrays, [prefix], block_size=BLOCK_SIZE)
    model.copy_slots([(21, 30, len(text) - BLOCK_SIZE)])
    chunks = [
        Chunk(token_ids=end, start=len(text), block_ids=[[20, block]])
        for end, block in zip(ends, (21, 30), strict=True)
    ]
    out = run_step(model, arrays, chunks, block_size=BLOCK_SIZE)
    np.testing.assert_array_equal(out.logits, np.concatenate(expected))


@pytest.mark.parametrize("quant", ["F32", "BF16", "Q4_0", "Q4_1", "Q8_0"])
def test_storage_types_are_dequantized(quant: str) -> None:
    tiny = tiny_llama(quant=quant)
    model = load(tiny)
    facts = model.describe()
    assert facts["layers.0.self_attn.q_proj.weight"] == f"f32 (from {quant})"
    assert facts["norm.weight"] == "f32 (from F32)"
    assert np.isfinite(alone(model, [1, 2, 3])).all()
    model.close()
    model.close()


@pytest.mark.parametrize(("n", "k"), [(960, 576), (576, 1536), (37, 100), (5, 7), (1, 64)])
def test_a_product_row_has_the_same_bits_in_any_number_of_rows(n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.standard_normal((300, k), np.float32)
    product = matmul.RowMatmul(rng.standard_normal((n, k), np.float32))
    whole = product(x)
    np.testing.assert_allclose(whole, x @ product._columns, rtol=1e-4, atol=1e-4)
    for start, stop in ((0, 1), (299, 300), (3, 20), (100, 240), (7, 8), (1, 300)):
        np.testing.assert_array_equal(product(x[start:stop]), whole[start:stop])
    assert product(x[:0]).shape == (0, n)


def test_blas_threads_do_not_change_a_bit() -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal((200, 576), np.float32)
    product = matmul.RowMatmul(rng.standard_normal((1536, 576), np.float32))
    found = []
    for count in (2, 1):
        blas_threads.set_blas_threads(count)
        found.append(product(x))
    np.testing.assert_array_equal(found[0], found[1])


def test_tiles_cover_all_rows() -> None:
    assert matmul.tiles(300, large=128, small=16) == [128, 128, 16, 16, 16]
    assert matmul.tiles(300, large=None, small=16) == [16] * 19
    assert matmul.tiles(0, large=128, small=16) == []


def test_attention_equals_a_dense_softmax() -> None:
    rng = np.random.default_rng(4)
    spec = KVStoreSpec(name="s", group=0, kind="full", num_kv_heads=2, k_dim=16, v_dim=8)
    cache = KVCache(spec, num_slots=1024, dtype="f32")
    k, v = rng.standard_normal((2, 600, 2, 16), np.float32)
    v = v[..., :8]
    table = rng.permutation(64)[:38].astype(np.int32)
    at = np.arange(600)
    cache.write(table[at // 16] * 16 + at % 16, k, v)
    q = rng.standard_normal((90, 6, 16), np.float32)
    for causal, window in ((True, None), (True, 300), (False, None)):
        options = attention.AttentionOptions(
            num_heads=6, scale=0.5, causal=causal, window=window, softcap=None, sinks=None
        )
        out = attention.attend(
            q, cache, first_position=510, context_len=600, block_table=table, block_size=16,
            options=options,
        )  # fmt: skip
        for row in range(90):
            position = 510 + row
            last = position if causal else 599
            first = 0 if window is None else position - window + 1
            for head in range(6):
                scores = 0.5 * k[first : last + 1, head // 3].astype(np.float64) @ q[row, head]
                weights = np.exp(scores - scores.max())
                dense = weights @ v[first : last + 1, head // 3] / weights.sum()
                np.testing.assert_allclose(out[row, head], dense, atol=2e-5)


def test_kv_dtypes_round_as_they_say() -> None:
    spec = KVStoreSpec(name="s", group=0, kind="full", num_kv_heads=2, k_dim=8, v_dim=4)
    rng = np.random.default_rng(5)
    k = rng.standard_normal((3, 2, 8), np.float32) * 3
    k[1, 0] = 0
    v = rng.standard_normal((3, 2, 4), np.float32)
    slots = np.array([5, 2, 9])
    for dtype in DTYPES:
        cache = KVCache(spec, num_slots=16, dtype=dtype)
        cache.write(slots, k, v)
        read = cache.k.read(slots)
        if dtype == "f32":
            np.testing.assert_array_equal(read, k)
        elif dtype == "bf16":
            bits = read.view(np.uint32)
            assert (bits & 0xFFFF == 0).all()
            neighbour = np.abs(read * 2.0**-8)  # half a step of 8 significant bits
            assert (np.abs(read - k) <= neighbour).all()
        else:
            step = np.abs(k).max(-1, keepdims=True) / 127
            assert (np.abs(read - k) <= step * 0.5001).all()
            assert (read[1, 0] == 0).all()
        assert cache.v.read(slots).shape == v.shape
    half_way = np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)
    cache = KVCache(spec, num_slots=16, dtype="bf16")
    cache.write(np.array([0]), np.resize(half_way, (1, 2, 8)), v[:1])
    bits = cache.k.read(np.array([0])).view(np.uint32)[0, 0, :2]
    assert bits.tolist() == [0x3F800000, 0x3F820000]  # ties go to the even neighbour


def test_rope_turns_pairs_by_position() -> None:
    freqs = (1.0, 0.25)
    x = np.random.default_rng(6).standard_normal((3, 12), np.float32)  # two heads of six
    positions = np.array([0, 3, 1000], np.int32)
    for style in ("neox", "interleaved"):
        spec = RopeSpec(dim=4, style=style, inv_freq=freqs, attention_factor=2.0)
        out = functions.rope(
            x, spec, head_dim=6, table=functions.rope_table(spec, positions)
        ).reshape(3, 2, 6)
        heads = x.reshape(3, 2, 6)
        for row, position in enumerate(positions):
            for pair, freq in enumerate(freqs):
                a, b = (pair, pair + 2) if style == "neox" else (2 * pair, 2 * pair + 1)
                z = (heads[row, :, a] + 1j * heads[row, :, b]) * np.exp(1j * position * freq) * 2
                np.testing.assert_allclose(out[row, :, a], z.real, atol=1e-5)
                np.testing.assert_allclose(out[row, :, b], z.imag, atol=1e-5)
        np.testing.assert_array_equal(out[..., 4:], heads[..., 4:])


def test_routing_keeps_the_best_groups_and_breaks_ties_by_id() -> None:
    def route(logits: list[float], **options: object) -> functions.Pairs:
        settings = {"top_k": 2, "score": "softmax", "renorm": False, "groups": None} | options
        op = Route(x=0, bias=None, out=1, **settings)  # type: ignore[arg-type]
        return functions.route(np.array([logits], np.float32), op, None)

    assert route([1, 3, 3, 3]).experts.tolist() == [1, 2]
    assert route([5, 0, 4, 3], groups=(2, 1)).experts.tolist() == [0, 1]
    assert route([5, 0, 4, 3], groups=(2, 2)).experts.tolist() == [0, 2]
    assert route([1, 2, 3, 4], renorm=True).weights.sum() == pytest.approx(1)


def test_pooling_takes_one_row_a_sequence() -> None:
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    starts = np.array([0, 2, 6], np.int32)
    last = functions.pool(x, starts, kind="last", normalize=False)
    np.testing.assert_array_equal(last, x[[1, 5]])
    first = functions.pool(x, starts, kind="cls", normalize=True)
    np.testing.assert_allclose(np.square(first).sum(1), 1, rtol=1e-6)
    mean = functions.pool(x, starts, kind="mean", normalize=False)
    np.testing.assert_array_equal(mean, [[1, 2], [7, 8]])


def test_activations_equal_their_definitions() -> None:
    x = np.linspace(-100, 100, 401, dtype=np.float32)
    wide = x.astype(np.float64)
    with np.errstate(over="ignore"):
        silu = wide / (1 + np.exp(-wide))
    np.testing.assert_allclose(functions.activation(x, "silu"), silu, rtol=1e-5, atol=1e-7)
    tanh = 0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    np.testing.assert_allclose(functions.activation(x, "gelu_tanh"), tanh, rtol=1e-4, atol=1e-6)
    exact = functions.activation(x, "gelu")
    np.testing.assert_allclose(exact, tanh, atol=2e-3)
    one = functions.activation(np.ones(1, np.float32), "gelu")
    assert one[0] == pytest.approx(0.8413447, abs=1e-6)
