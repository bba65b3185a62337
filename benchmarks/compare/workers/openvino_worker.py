"""OpenVINO GenAI's worker: its continuous-batching pipeline, stepped from here.

Runs in the environment of openvino-genai. Reads the same GGUF file, prefix cache off.
"""

import itertools
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from stdio import Measured, Stopwatch, serve

# tokens of its KV block on a CPU
_BLOCK = 32
_STEP_TOKENS = 2048


class OpenVinoEngine:
    """See stdio.Engine."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def load(self, model: str, threads: int, max_sequences: int,
             max_context: int) -> dict[str, str]:
        config = genai.SchedulerConfig()
        config.enable_prefix_caching = False
        config.max_num_seqs = max_sequences
        config.max_num_batched_tokens = _STEP_TOKENS
        config.num_kv_blocks = max_sequences * (-(-max_context // _BLOCK) + 2)
        # of the hints for a CPU the fastest, in prefill and in batches (its default is the same
        # within the noise; THROUGHPUT loses a fifth, bf16 precision a third of decode)
        properties = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        self._pipeline = genai.ContinuousBatchingPipeline(model, config, "CPU", properties)
        vocab = self._pipeline.get_tokenizer().get_vocab()
        self._vocab_size = max(vocab.values()) + 1
        return {"version": genai.__version__}

    def vocab_size(self) -> int:
        return self._vocab_size

    def prefill(self, prompt: list[int]) -> Measured:
        watch = Stopwatch()
        handle, counts = self._add(prompt, 1), [0]
        while counts[0] == 0:
            self._step([handle], counts)
        measured = watch.stop(len(prompt))
        self._drain()
        return measured

    def start(self, prompts: list[list[int]], tokens: int) -> None:
        """Sequences that were prefilled early are ahead, and nobody may end in a window."""
        slack = 4 + len(prompts) * len(prompts[0]) // _STEP_TOKENS
        allowed = tokens + 1 + (slack if len(prompts) > 1 else 0)
        self._handles = [self._add(prompt, allowed) for prompt in prompts]
        self._counts = [0] * len(prompts)
        while min(self._counts) == 0:
            self._step(self._handles, self._counts)

    def window(self, tokens: int) -> Measured:
        before, wanted = sum(self._counts), tokens * len(self._handles)
        watch = Stopwatch()
        while (sum(self._counts) - before < wanted
               and self._pipeline.has_non_finished_requests()):
            self._step(self._handles, self._counts)
        return watch.stop(sum(self._counts) - before)

    def end(self) -> None:
        for handle in self._handles:
            handle.stop()
        self._drain()

    def _drain(self) -> None:
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()

    def _step(self, handles: list[Any], counts: list[int]) -> None:
        self._pipeline.step()
        for index, handle in enumerate(handles):
            while handle.can_read():
                counts[index] += sum(len(output.generated_ids)
                                     for output in handle.read().values())

    def _add(self, prompt: list[int], max_tokens: int) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens = max_tokens
        config.ignore_eos = True
        config.do_sample = False
        ids = ov.Tensor(np.array([prompt], np.int64))
        return self._pipeline.add_request(next(self._ids), ids, config)


if __name__ == "__main__":
    serve(OpenVinoEngine())
