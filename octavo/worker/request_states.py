"""RequestStates: what the worker remembers of each running request, one permanent row each.

Integers and sampling options in plain arrays, so that a step gathers them with fancy indexing.
It does not know the step's layout (input_batch.py), backends or the scheduler's decisions.

    row r:  token_ids[r, :num_tokens[r]]   prompt and output so far
            |<-- num_computed[r] -->|      KV exists below this position
            block_table[r, :num_blocks[r]] block ids, position p lives in entry p // block_size
"""

import numpy as np
import numpy.typing as npt

from octavo.core.step import CachedRequestData, NewRequestData
from octavo.worker.sampling.state import SamplingState

I32 = npt.NDArray[np.int32]


class RequestStates:
    """Rows 0 .. max_num_seqs - 1; a request keeps its row from entry to exit."""

    def __init__(self, *, max_num_seqs: int, max_model_len: int, max_blocks_per_seq: int,
                 vocab_size: int) -> None:
        n = max_num_seqs
        self._vocab_size = vocab_size
        # one more column than the context: the last token drawn is kept, though never computed
        self.token_ids: I32 = np.zeros((n, max_model_len + 1), np.int32)
        self.num_tokens: I32 = np.zeros(n, np.int32)
        self.num_prompt: I32 = np.zeros(n, np.int32)
        self.num_computed: I32 = np.zeros(n, np.int32)
        # so many of the last known tokens are to be scored, each by the row before it
        self.num_unscored: I32 = np.zeros(n, np.int32)
        self.block_table: I32 = np.zeros((n, max_blocks_per_seq), np.int32)
        self.num_blocks: I32 = np.zeros(n, np.int32)
        self.temperature = np.zeros(n, np.float32)
        self.top_k: I32 = np.zeros(n, np.int32)
        self.top_p = np.ones(n, np.float32)
        self.min_p = np.zeros(n, np.float32)
        self.repetition_penalty = np.ones(n, np.float32)
        self.presence_penalty = np.zeros(n, np.float32)
        self.frequency_penalty = np.zeros(n, np.float32)
        self.seed: npt.NDArray[np.uint64] = np.zeros(n, np.uint64)
        self.sample_index: I32 = np.zeros(n, np.int32)
        self.num_logprobs: I32 = np.full(n, -1, np.int32)
        # alternatives of a prompt position; -2 = this request wants no prompt logprobs
        self.num_prompt_logprobs: I32 = np.full(n, -2, np.int32)
        self.row_of: dict[str, int] = {}
        self.ids: list[str] = [""] * n
        # rows whose logits are edited before sampling, and how
        self.edits: dict[int, SamplingState] = {}
        # rows with a grammar: what the next token may be, for one step
        self.grammar_masks: dict[int, npt.NDArray[np.uint32]] = {}
        # rows that report the logprobs of these ids, not of the most likely ones
        self.report_ids: dict[int, I32] = {}
        # The same memory, for single elements: a step has streamed the weights through the caches,
        # and the little code behind a memoryview comes back far sooner than NumPy's.
        self.token_ids_view = self.token_ids.data
        self.num_tokens_view = self.num_tokens.data
        self.num_computed_view = self.num_computed.data
        self.num_logprobs_view = self.num_logprobs.data
        self._free = list(range(n - 1, -1, -1))

    def add(self, new: NewRequestData) -> int:
        """Gives the request a row. It must not have one."""
        assert new.request_id not in self.row_of, f"{new.request_id} is already in the worker"
        assert self._free, "more running requests than rows"
        row = self._free.pop()
        self.row_of[new.request_id] = row
        self.ids[row] = new.request_id
        num_tokens = len(new.token_ids)
        self.token_ids[row, :num_tokens] = new.token_ids
        self.num_tokens[row] = num_tokens
        self.num_prompt[row] = new.num_prompt_tokens
        self.num_computed[row] = new.num_computed_tokens
        self.num_unscored[row] = new.num_unscored_tokens
        self.block_table[row, : len(new.block_ids)] = new.block_ids
        self.num_blocks[row] = len(new.block_ids)
        self._set_params(row, new)
        return row

    def _set_params(self, row: int, new: NewRequestData) -> None:
        p = new.params
        self.temperature[row] = p.temperature
        self.top_k[row] = min(p.top_k, self._vocab_size)
        self.top_p[row] = p.top_p
        self.min_p[row] = p.min_p
        self.repetition_penalty[row] = p.repetition_penalty
        self.presence_penalty[row] = p.presence_penalty
        self.frequency_penalty[row] = p.frequency_penalty
        self.seed[row] = np.uint64(new.seed)
        self.sample_index[row] = new.sample_index
        self.num_logprobs[row] = self._count(p.logprobs, absent=-1)
        if p.logprob_token_ids is not None:
            self.report_ids[row] = np.asarray(p.logprob_token_ids, np.int32)
            self.num_logprobs[row] = len(p.logprob_token_ids)
        # a request that already has output has delivered its prompt logprobs
        resumed = len(new.token_ids) > new.num_prompt_tokens
        wanted = None if resumed else p.prompt_logprobs
        self.num_prompt_logprobs[row] = self._count(wanted, absent=-2)
        state = SamplingState.of(new, vocab_size=self._vocab_size)
        if state is not None:
            self.edits[row] = state

    def _count(self, wanted: int | None, *, absent: int) -> int:
        if wanted is None:
            return absent
        return self._vocab_size if wanted == -1 else min(wanted, self._vocab_size)

    def update(self, cached: CachedRequestData) -> int:
        """Applies what changed since the last step; returns the row."""
        row = self.row_of[cached.request_id]
        self.num_computed_view[row] = cached.num_computed_tokens
        if cached.new_block_ids:
            start = int(self.num_blocks[row])
            end = start + len(cached.new_block_ids)
            self.block_table[row, start:end] = cached.new_block_ids
            self.num_blocks[row] = end
        for index, block_id in cached.replaced_blocks:
            self.block_table[row, index] = block_id
        for token_id in cached.new_token_ids:
            self.append_token(row, token_id)
        self.num_unscored[row] = cached.num_unscored_tokens
        return row

    def append_token(self, row: int, token_id: int) -> None:
        """Records an output token."""
        at = self.num_tokens_view[row]
        self.token_ids_view[row, at] = token_id
        self.num_tokens_view[row] = at + 1
        state = self.edits.get(row)
        if state is not None:
            state.append(token_id)

    def bans_everything(self, row: int) -> bool:
        """Whether the request's own bans leave no token, whatever the model says."""
        size = self._vocab_size
        allowed = np.ones(size, np.bool_)
        edits, words = self.edits.get(row), self.grammar_masks.get(row)
        for mask in (words, None if edits is None else edits.mask):
            if mask is not None:
                bits = np.unpackbits(np.ascontiguousarray(mask).view(np.uint8), bitorder="little")
                allowed &= bits[:size].astype(np.bool_)
        if edits is not None:
            ids, values = edits.bias()
            banned = ids[np.isneginf(values)]
            allowed[banned[banned < size]] = False
        return not allowed.any()

    def remove(self, request_id: str) -> None:
        """Frees the row. Unknown ids are ignored: a request may end before it ever ran."""
        row = self.row_of.pop(request_id, None)
        if row is None:
            return
        self.ids[row] = ""
        self.edits.pop(row, None)
        self.report_ids.pop(row, None)
        self._free.append(row)
