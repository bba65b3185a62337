"""llama.cpp's worker, through the C functions llama-cpp-python binds: no Python sampling, no text.

Runs in the environment of llama-cpp-python. Each sequence has its own KV stream where the version
knows that.
"""

import ctypes

import llama_cpp
from stdio import Measured, Stopwatch, serve

# Of 128, 256, 512 and 2048, with flash attention and without, this and flash attention are the
# fastest in prefill of 512 (Q4_0 747 tok/s against 483 to 694, BF16 886 against 659 to 828) and in
# decode behind it (Q4_0 121 against 95, BF16 77 against 73).
_UBATCH = 512
_FLASH_ATTENTION_ON = 1


class LlamaEngine:
    """See stdio.Engine."""

    def load(self, model: str, threads: int, max_sequences: int,
             max_context: int) -> dict[str, str]:
        llama_cpp.llama_backend_init()
        self._log = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))
        model_params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(model.encode(), model_params)
        if not self._model:
            raise RuntimeError("the model could not be loaded")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = max_sequences * max_context
        params.n_seq_max = max_sequences
        params.n_batch = 2048
        params.n_ubatch = _UBATCH
        params.n_threads = params.n_threads_batch = threads
        if hasattr(params, "flash_attn_type"):
            params.flash_attn_type = _FLASH_ATTENTION_ON
        if hasattr(params, "kv_unified"):
            params.kv_unified = False
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError("the context could not be made")
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._sampler = llama_cpp.llama_sampler_init_greedy()
        self._batch = llama_cpp.llama_batch_init(2048, 0, 1)
        return {"version": llama_cpp.__version__,
                "system": llama_cpp.llama_print_system_info().decode()[:300]}

    def vocab_size(self) -> int:
        return int(llama_cpp.llama_vocab_n_tokens(self._vocab))

    def prefill(self, prompt: list[int]) -> Measured:
        self._clear()
        watch = Stopwatch()
        self._feed(prompt, 0)
        self._sample(-1)
        return watch.stop(len(prompt))

    def start(self, prompts: list[list[int]], tokens: int) -> None:
        """Only the first prompt is computed, and its KV copied into the other sequences' streams:
        minutes less, and a step reads as much as with prompts of their own."""
        self._clear()
        self._feed(prompts[0], 0)
        self._last = [self._sample(-1)] * len(prompts)
        memory = llama_cpp.llama_get_memory(self._context)
        for sequence in range(1, len(prompts)):
            llama_cpp.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        self._position = len(prompts[0])
        if len(prompts) > 1:  # the copies are made at the next step
            self.window(1)

    def window(self, tokens: int) -> Measured:
        watch = Stopwatch()
        for _ in range(tokens):
            rows = [(token, self._position, sequence, True)
                    for sequence, token in enumerate(self._last)]
            self._decode(rows)
            self._last = [self._sample(row) for row in range(len(rows))]
            self._position += 1
        return watch.stop(tokens * len(self._last))

    def end(self) -> None:
        self._clear()

    def _clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def _feed(self, prompt: list[int], sequence: int) -> None:
        for start in range(0, len(prompt), 2048):
            part = prompt[start: start + 2048]
            self._decode([(token, start + i, sequence, start + i == len(prompt) - 1)
                          for i, token in enumerate(part)])

    def _decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wants_logits) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wants_logits
        status = llama_cpp.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode answered {status}")

    def _sample(self, row: int) -> int:
        return int(llama_cpp.llama_sampler_sample(self._sampler, self._context, row))


if __name__ == "__main__":
    serve(LlamaEngine())
