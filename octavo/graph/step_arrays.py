"""StepArrays: the arrays of one step, allocated once at fixed capacity and refilled every step.

Plain NumPy memory that a native backend may read in place. The worker gathers into it; backends
only read it (and write StepOutputs). Counts say how much of each array is in use.
"""

import dataclasses

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]


@dataclasses.dataclass(slots=True, frozen=True)
class StepLimits:
    """Capacity of a step. max_rows bounds R, max_top_logprobs the alternatives a row reports."""

    max_tokens: int
    max_seqs: int
    max_rows: int
    max_blocks_per_seq: int
    num_kv_groups: int = 1
    max_mask_rows: int = 64
    max_sparse: int = 1 << 16  # penalty or bias entries of a whole step
    max_report_ids: int = 128  # ids that one row is asked to report
    vocab_size: int = 0


class SamplingArrays:
    """Per row R: how to draw its token. Field order of the filters: design section 5.

    target_ids >= 0 makes a row "score": nothing is drawn, the logprob of that id is reported.
    num_logprobs: -1 none wanted, else how many alternatives.
    """

    def __init__(self, limits: StepLimits) -> None:
        r = limits.max_rows
        self.temperature: F32 = np.zeros(r, np.float32)
        self.top_k: I32 = np.zeros(r, np.int32)  # 0 = off
        self.top_p: F32 = np.ones(r, np.float32)
        self.min_p: F32 = np.zeros(r, np.float32)
        self.repetition_penalty: F32 = np.ones(r, np.float32)
        self.presence_penalty: F32 = np.zeros(r, np.float32)
        self.frequency_penalty: F32 = np.zeros(r, np.float32)
        # noise key: (seed, sample index, position of the token to draw, token id)
        self.seed: U64 = np.zeros(r, np.uint64)
        self.sample_index: I32 = np.zeros(r, np.int32)
        self.position: I32 = np.zeros(r, np.int32)
        self.target_ids: I32 = np.full(r, -1, np.int32)
        self.num_logprobs: I32 = np.full(r, -1, np.int32)
        # allowed-token bitsets: row r uses masks[mask_index[r]], bit i of word i // 32; -1 = none
        self.mask_index: I32 = np.full(r, -1, np.int32)
        self.masks: U32 = np.zeros(
            (limits.max_mask_rows, (limits.vocab_size + 31) // 32), np.uint32
        )
        # tokens seen so far, sparse by row: entries penalty_start[r] .. penalty_start[r + 1]
        self.penalty_start: I32 = np.zeros(r + 1, np.int32)
        self.penalty_ids: I32 = np.zeros(limits.max_sparse, np.int32)
        self.penalty_counts: I32 = np.zeros(limits.max_sparse, np.int32)  # times in the output
        # values added to logits, sparse by row; -inf bans (logit_bias, bad words, min_tokens)
        self.bias_start: I32 = np.zeros(r + 1, np.int32)
        self.bias_ids: I32 = np.zeros(limits.max_sparse, np.int32)
        self.bias_values: F32 = np.zeros(limits.max_sparse, np.float32)
        # ids whose logprobs a row reports, in this order, instead of the most likely ones'; sparse
        # by row. num_logprobs is their number there.
        self.report_start: I32 = np.zeros(r + 1, np.int32)
        self.report_ids: I32 = np.zeros(r * limits.max_report_ids, np.int32)


class StepArrays:
    """Inputs of one step. T = num_tokens, S = num_seqs, R = num_rows are in use.

    Rows of one sequence are consecutive and in position order.
    """

    def __init__(self, limits: StepLimits) -> None:
        t, s, g = limits.max_tokens, limits.max_seqs, limits.num_kv_groups
        self.limits = limits
        self.num_tokens = 0
        self.num_seqs = 0
        self.num_rows = 0
        self.token_ids: I32 = np.zeros(t, np.int32)
        self.positions: I32 = np.zeros(t, np.int32)
        self.query_start_loc: I32 = np.zeros(s + 1, np.int32)
        self.context_len: I32 = np.zeros(s, np.int32)  # tokens incl. those of this step
        self.block_tables: I32 = np.zeros((g, s, limits.max_blocks_per_seq), np.int32)
        self.slot_mapping: I32 = np.zeros((g, t), np.int32)  # block_id * block_size + offset
        self.logits_indices: I32 = np.zeros(limits.max_rows, np.int32)  # token row of each R row
        self.sampling = SamplingArrays(limits)


class StepOutputs:
    """Results of one step, valid until the next one.

    sampled[r]: the drawn id (a score row: its target). logprob, rank: of that id under the raw
    model (rank 1 = most likely), where asked for. top_ids/top_logprobs: [R, k] for the largest k
    asked for in this step; the listed ids of a row that has some. logits: raw
    [R, vocab], only when asked for. num_merged_rows: token rows whose attention read KV blocks
    together with rows of other sequences.
    """

    __slots__ = ("logits", "logprob", "num_merged_rows", "num_native_calls", "rank", "sampled",
                 "top_ids", "top_logprobs")

    def __init__(self, sampled: I32, logprob: F32, rank: I32, top_ids: I32, top_logprobs: F32,
                 logits: F32 | None, num_native_calls: int, num_merged_rows: int = 0) -> None:
        self.sampled = sampled
        self.logprob = logprob
        self.rank = rank
        self.top_ids = top_ids
        self.top_logprobs = top_logprobs
        self.logits = logits
        self.num_native_calls = num_native_calls
        self.num_merged_rows = num_merged_rows
