"""Splits that sequences share: grouped as the reference groups them, and attended once for all of
them with the same bits as alone."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.seam import KVOptions, LoadedModel
from octavo.graph.step_arrays import F32, StepArrays, StepLimits
from octavo.testing.forward import Chunk, run_step
from octavo.testing.toy_model import TinyModel, tiny_llama
from tests.backends.cpu.running import sequences
from tests.parity.kernels import assert_same_bits, native

SPLIT = 256
BLOCK_SIZE = 16
PREFIX = 33 * BLOCK_SIZE  # two whole splits and 16 positions of the third
Group = tuple[int, list[int]]


def expected_groups(tables: np.ndarray, begins: Sequence[int], ends: Sequence[int],
                    block_size: int, most: int) -> list[Group]:
    groups: list[Group] = []
    for split in range(max(ends, default=0)):
        blocks = slice(split * SPLIT // block_size, -(-(split + 1) * SPLIT // block_size))
        same: dict[bytes, list[int]] = {}
        for user, table in enumerate(tables):
            if begins[user] <= split < ends[user]:
                same.setdefault(table[blocks].tobytes(), []).append(user)
        for users in same.values():
            pieces = -(-len(users) // most)
            cuts = [len(users) * p // pieces for p in range(pieces + 1)]
            groups += [(split, users[a:b]) for a, b in itertools.pairwise(cuts) if b - a > 1]
    return groups


def found_groups(tables: np.ndarray, begins: Sequence[int], ends: Sequence[int],
                 block_size: int, most: int) -> list[Group]:
    found: list[Group] = native.shared_splits(
        np.ascontiguousarray(tables, np.int32), np.asarray(begins, np.int32),
        np.asarray(ends, np.int32), block_size, most)
    return found


@pytest.mark.parametrize("seed", range(40))
def test_random_tables_are_grouped_as_the_reference_does(seed: int) -> None:
    """Tables grow from each other, with blocks replaced here and there."""
    rng = np.random.default_rng(seed)
    block_size = int(rng.choice([16, 32, 48, 256, 512]))
    blocks = -(-6 * SPLIT // block_size)
    users = int(rng.integers(1, 40))
    tables = rng.integers(0, 500, (users, blocks))
    for user in range(1, users):
        if rng.random() < 0.8:
            shared = int(rng.integers(0, blocks + 1))
            tables[user, :shared] = tables[rng.integers(0, user), :shared]
        if rng.random() < 0.3:  # apart in one block, together again behind it
            tables[user, rng.integers(0, blocks)] = rng.integers(0, 3)
    begins = rng.integers(0, 3, users).tolist()
    ends = rng.integers(1, blocks * block_size // SPLIT + 1, users).tolist()
    most = int(rng.integers(2, 18))
    assert found_groups(tables, begins, ends, block_size, most) \
        == expected_groups(tables, begins, ends, block_size, most)


def test_groups_by_hand() -> None:
    tables = np.arange(32)[None].repeat(5, axis=0)
    tables[3] += 100  # nobody's
    tables[4, 20] = 9  # apart in the second split only
    assert found_groups(tables, [0] * 5, [2, 1, 2, 2, 2], 16, 16) \
        == [(0, [0, 1, 2, 4]), (1, [0, 2])]
    assert found_groups(tables[:1], [0], [2], 16, 16) == []
    assert found_groups(np.zeros((5, 16)), [0] * 5, [1] * 5, 16, 3) == [(0, [0, 1]), (0, [2, 3, 4])]


def limits_of(model: TinyModel) -> StepLimits:
    return StepLimits(max_tokens=256, max_seqs=32, max_rows=256, max_blocks_per_seq=40,
                      vocab_size=model.graph.vocab_size, max_sparse=64)


class Batch:
    """`count` sequences over one prefix, in blocks of their own behind it; the last two have copies
    of its last 17 blocks, the one before them of all."""

    def __init__(self, model: TinyModel, count: int) -> None:
        self.model = model
        vocab = model.graph.vocab_size
        self.prefix, self.other = sequences(2, [PREFIX, 300], vocab, seed=3)
        self.suffixes = sequences(count, [1, 30, 7, 18], vocab, seed=4)
        self.copied = {count - 3: 0, count - 2: 16, count - 1: 16}

    def tables(self, shared: bool) -> tuple[list[list[int]], list[tuple[int, int, int]]]:
        """Block tables, and the copies of blocks they need."""
        next_block, copies, tables = PREFIX // BLOCK_SIZE, [], []
        for i in range(len(self.suffixes)):
            first = self.copied.get(i, len(self.prefix) // BLOCK_SIZE) if shared else 0
            table = list(range(first))
            for block in range(first, PREFIX // BLOCK_SIZE):
                copies.append((block, next_block, BLOCK_SIZE))
                table.append(next_block)
                next_block += 1
            tables.append([*table, next_block, next_block + 1, next_block + 2])
            next_block += 3
        self.other_table = list(range(next_block, next_block + 20))
        return tables, copies

    def run(self, *, kv: str, threads: int, merge: bool, shared: bool = True
            ) -> tuple[list[F32], list[int]]:
        """Logits of every sequence's suffix, token by token beside chunks of another prompt; rows
        merged in each step."""
        loaded: LoadedModel = CpuBackend().load(
            self.model.graph, self.model.weights, limits=limits_of(self.model),
            kv=KVOptions(block_size=BLOCK_SIZE, num_blocks=1100, dtype=kv,
                         merge_shared_prefix=merge), num_threads=threads)
        arrays = StepArrays(limits_of(self.model))
        for start in range(0, PREFIX, 256):
            ids = self.prefix[start : start + 256]
            chunk = Chunk(token_ids=ids, start=start,
                          block_ids=[list(range(PREFIX // BLOCK_SIZE))])
            run_step(loaded, arrays, [chunk], block_size=BLOCK_SIZE)
        tables, copies = self.tables(shared)
        loaded.copy_slots(copies)
        logits: list[list[F32]] = [[] for _ in range(len(self.suffixes) + 1)]
        merged = []
        for at in range(max(len(s) for s in self.suffixes)):
            chunks = [(i, Chunk(token_ids=s[at : at + 1], start=PREFIX + at, block_ids=[tables[i]]))
                      for i, s in enumerate(self.suffixes) if at < len(s)]
            ids = self.other[at * 10 : at * 10 + 10]
            chunks.insert(2, (-1, Chunk(token_ids=ids, start=at * 10,
                                        block_ids=[self.other_table])))
            out = run_step(loaded, arrays, [c for _, c in chunks], block_size=BLOCK_SIZE)
            assert out.logits is not None
            row = 0
            for i, chunk in chunks:
                logits[i].append(out.logits[row : row + len(chunk.token_ids)].copy())
                row += len(chunk.token_ids)
            merged.append(out.num_merged_rows)
        loaded.close()
        return [np.concatenate(parts) for parts in logits], merged


def odd_model() -> TinyModel:
    """Three query heads a KV head; groups of 32 columns of attention's result span KV heads."""
    return tiny_llama(3, quant="Q8_0", hidden_size=96, num_heads=6, num_kv_heads=2, head_dim=16)


@pytest.mark.parametrize("kv", ["f32", "bf16", "int8"])
@pytest.mark.parametrize("name", ["grouped", "window", "even"])
def test_merged_reads_change_no_bit(kv: str, name: str) -> None:
    """Merged = alone = private copies, whatever the threads; prefill chunks go beside."""
    model = tiny_llama(2, sliding_window=300) if name == "window" else odd_model()
    batch = Batch(model, 20)
    if name == "even":  # all share all, so that units span splits
        batch.copied = {}
    alone, merged = batch.run(kv=kv, threads=1, merge=False)
    assert not any(merged)
    private, merged = batch.run(kv=kv, threads=2, merge=True, shared=False)
    assert not any(merged)
    runs = [private]
    for threads in (1, 2, 5):
        found, merged = batch.run(kv=kv, threads=threads, merge=True)
        runs.append(found)
        # All but the copy of all blocks. A window of 300 leaves only the second split whole, which
        # two more have copies of, and none from position 555 on.
        expected = {"grouped": (19, 9, 4), "window": (17, 8, 0), "even": (20, 10, 5)}[name]
        assert (merged[0], merged[17], merged[-1]) == expected
    for found in runs:
        for one, other in zip(alone, found, strict=True):
            assert_same_bits(one, other)


def test_one_sequence_merges_with_nobody() -> None:
    batch = Batch(tiny_llama(1), 4)
    batch.copied = {1: 0, 2: 0, 3: 0}
    _, merged = batch.run(kv="int8", threads=2, merge=True)
    assert not any(merged)
