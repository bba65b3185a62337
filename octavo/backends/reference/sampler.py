"""The sampler's meaning in NumPy: the same draws as the native sampler, written independently.

Knows nothing of requests or models. The order of the filters, ties and the noise are defined here;
csrc/sampler.cc computes the same without a sort of the vocabulary.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

from octavo.graph.step_arrays import F32, I32, SamplingArrays

_F64 = npt.NDArray[np.float64]
_F32_MAX = np.finfo(np.float32).max
# Softmax weights of top_p are integers in units of 2^-40: sums are exact in any order.
_WEIGHT_ONE = 2.0**40
_LOW_WORD = np.uint64(0xFFFFFFFF)


def sample_rows(
    logits: npt.NDArray[np.floating], arrays: SamplingArrays, num_rows: int
) -> tuple[I32, F32, I32, I32, F32]:
    """Draws (or scores) one token a row.

    logits: [num_rows or more, vocab] float32, not modified. A NaN counts as -inf, +inf as the
    largest float. Returns (sampled, logprob, rank, top_ids, top_logprobs), the last two
    [num_rows, k] for the largest num_logprobs; a row with report ids lists
    these. sampled is -1 where nothing may be drawn. logprob, rank and alternatives are of the raw
    logits; rows that want none have -inf, 0 and -1.
    """
    width = max([0, *(int(n) for n in arrays.num_logprobs[:num_rows])])
    width = min(width, logits.shape[1])
    sampled = np.zeros(num_rows, np.int32)
    logprob = np.full(num_rows, -np.inf, np.float32)
    rank = np.zeros(num_rows, np.int32)
    top_ids = np.full((num_rows, width), -1, np.int32)
    top_logprobs = np.full((num_rows, width), -np.inf, np.float32)
    for row in range(num_rows):
        raw = np.asarray(logits[row], np.float32)
        target = int(arrays.target_ids[row])
        token = target if target >= 0 else _draw(_processed(raw, arrays, row), arrays, row)
        sampled[row] = token
        wanted = int(arrays.num_logprobs[row])
        if target < 0 and wanted < 0:
            continue
        report = _Report.of(_sanitized(raw))
        if report is None:
            continue
        first, end = int(arrays.report_start[row]), int(arrays.report_start[row + 1])
        if end > first:
            ids = arrays.report_ids[first:end].astype(np.intp)
        else:
            ids = report.best(wanted)
            ids = ids[report.logits[ids] > -np.inf]
        top_ids[row, : len(ids)] = ids
        top_logprobs[row, : len(ids)] = report.logprobs[ids]
        if 0 <= token < raw.size:
            logprob[row] = report.logprobs[token]
            rank[row] = report.rank(token)
    return sampled, logprob, rank, top_ids, top_logprobs


@dataclasses.dataclass(slots=True, frozen=True)
class _Report:
    """Log-softmax of a raw row and its ids in order: larger logit first, then lower id."""

    logits: F32
    logprobs: F32

    @classmethod
    def of(cls, logits: F32) -> "_Report | None":
        highest = logits.max()
        if highest == -np.inf:
            return None
        shifted = logits.astype(np.float64) - np.float64(highest)
        logprobs = (shifted - np.log(np.exp(shifted).sum())).astype(np.float32)
        return cls(logits=logits, logprobs=logprobs)

    def best(self, count: int) -> npt.NDArray[np.intp]:
        """The first `count` ids in the order; none for 0 or less."""
        if count <= 0:
            return np.zeros(0, np.intp)
        return np.argsort(-self.logits, kind="stable")[:count]

    def rank(self, token: int) -> int:
        """1 + the ids before it in the order; the vocabulary's size at -inf."""
        if self.logits[token] == -np.inf:
            return int(self.logits.size)
        value = self.logits[token]
        ahead = np.count_nonzero(self.logits > value)
        return 1 + int(ahead + np.count_nonzero(self.logits[:token] == value))


def _sanitized(logits: F32) -> F32:
    x = np.where(np.isnan(logits), np.float32(-np.inf), logits)
    return np.minimum(x, _F32_MAX).astype(np.float32)


def _processed(raw: F32, arrays: SamplingArrays, row: int) -> F32:
    """Allowed ids, bias, penalties: in this order, every step rounded to float32."""
    x = raw.copy()
    with np.errstate(over="ignore", invalid="ignore"):
        if arrays.mask_index[row] >= 0:
            mask = arrays.masks[arrays.mask_index[row]]
            allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: x.size]
            x = np.where(allowed.astype(bool), x, np.float32(-np.inf))
        for i in range(arrays.bias_start[row], arrays.bias_start[row + 1]):
            if 0 <= arrays.bias_ids[i] < x.size:
                x[arrays.bias_ids[i]] += arrays.bias_values[i]
        _penalize(x, arrays, row)
    return _sanitized(x)


def _penalize(x: F32, arrays: SamplingArrays, row: int) -> None:
    repetition = arrays.repetition_penalty[row]
    presence = arrays.presence_penalty[row]
    frequency = arrays.frequency_penalty[row]
    if repetition == 1 and presence == 0 and frequency == 0:
        return
    for i in range(arrays.penalty_start[row], arrays.penalty_start[row + 1]):
        token = arrays.penalty_ids[i]
        if not 0 <= token < x.size:
            continue
        value = x[token] / repetition if x[token] > 0 else x[token] * repetition
        if arrays.penalty_counts[i] > 0:
            value = value - frequency * np.float32(arrays.penalty_counts[i])
            value = value - presence
        x[token] = value


def _draw(x: F32, arrays: SamplingArrays, row: int) -> int:
    """Argmax of the processed row, with Gumbel noise among the kept ids unless greedy."""
    highest = x.max()
    if highest == -np.inf:
        return -1
    temperature = arrays.temperature[row]
    if not temperature > 0:
        return int(x.argmax())
    with np.errstate(over="ignore"):
        y = (x - highest) / temperature
    kept = _kept(x, y, arrays, row)
    noise = gumbel_noise(
        int(arrays.seed[row]), int(arrays.position[row]), int(arrays.sample_index[row]), x.size
    )
    scores = np.where(kept, y.astype(np.float64) + noise, -np.inf)
    return int(scores.argmax())


def _kept(x: F32, y: F32, arrays: SamplingArrays, row: int) -> npt.NDArray[np.bool_]:
    """What min_p, top_k and top_p keep: a prefix of the ids by (logit descending, id ascending)."""
    order = np.argsort(-x, kind="stable")
    count = int((x > -np.inf).sum())
    if arrays.min_p[row] > 0:
        floor = min(np.float32(np.log(np.float64(arrays.min_p[row]))), np.float32(0))
        count = min(count, int((y >= floor).sum()))
    if arrays.top_k[row] > 0:
        count = min(count, int(arrays.top_k[row]))
    top_p = np.float64(arrays.top_p[row])
    if top_p < 1:
        units = np.exp(y[order[:count]].astype(np.float64)) * _WEIGHT_ONE
        running = np.cumsum(np.rint(units).astype(np.uint64))
        total = int(running[-1])
        target = min(max(int(np.ceil(top_p * np.float64(total))), 1), total)
        count = int(np.searchsorted(running, np.uint64(target))) + 1
    kept = np.zeros(x.size, bool)
    kept[order[:count]] = True
    return kept


def gumbel_noise(seed: int, position: int, sample_index: int, vocab_size: int) -> _F64:
    """Noise of every token id for one draw: -log(-log(u)), u = (word + 0.5) / 2^32.

    word: word id % 4 of Philox4x32-10 with key = seed (low 32 bits first) and counter =
    (id // 4, position, sample_index, 0). Returns float64 [vocab_size].
    """
    words = philox(seed, position, sample_index, (vocab_size + 3) // 4).reshape(-1)[:vocab_size]
    u = (words.astype(np.float64) + 0.5) * 2.0**-32
    return -np.log(-np.log(u))


def philox(seed: int, position: int, sample_index: int, count: int) -> npt.NDArray[np.uint32]:
    """Philox4x32-10 blocks of counters (0 .. count - 1, position, sample_index, 0): [count, 4].

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c0 = np.arange(count, dtype=np.uint64)
    c1 = np.full(count, position & 0xFFFFFFFF, np.uint64)
    c2 = np.full(count, sample_index & 0xFFFFFFFF, np.uint64)
    c3 = np.zeros(count, np.uint64)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0 = np.uint64(0xD2511F53) * c0
        p1 = np.uint64(0xCD9E8D57) * c2
        c0, c1 = (p1 >> np.uint64(32)) ^ c1 ^ np.uint64(k0), p1 & _LOW_WORD
        c2, c3 = (p0 >> np.uint64(32)) ^ c3 ^ np.uint64(k1), p0 & _LOW_WORD
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)
