"""transformers' worker: eager PyTorch in bfloat16, the cache its own generate() uses, no text.

Runs in the environment of transformers. Batches are computed without padding: all prompts of a
case have one length.
"""

import torch
import transformers
from stdio import Measured, Stopwatch, serve
from transformers import AutoModelForCausalLM, DynamicCache

# prompts of this many tokens in one forward: their logits and attention scores stay small
_STEP_TOKENS = 8192


class TransformersEngine:
    """See stdio.Engine."""

    def load(self, model: str, threads: int, max_sequences: int,
             max_context: int) -> dict[str, str]:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self._model = AutoModelForCausalLM.from_pretrained(
            model, dtype=torch.bfloat16, attn_implementation="sdpa").eval()
        return {"version": transformers.__version__, "torch": torch.__version__}

    def vocab_size(self) -> int:
        return int(self._model.config.vocab_size)

    def prefill(self, prompt: list[int]) -> Measured:
        watch = Stopwatch()
        self._forward(torch.tensor([prompt]), DynamicCache(config=self._model.config))
        return watch.stop(len(prompt))

    def start(self, prompts: list[list[int]], tokens: int) -> None:
        self._cache = DynamicCache(config=self._model.config)
        ids = torch.tensor(prompts)
        width = max(1, _STEP_TOKENS // len(prompts))
        for part in ids.split(width, dim=1):
            self._last = self._forward(part, self._cache)

    def window(self, tokens: int) -> Measured:
        watch = Stopwatch()
        for _ in range(tokens):
            self._last = self._forward(self._last, self._cache)
        return watch.stop(tokens * len(self._last))

    def end(self) -> None:
        del self._cache, self._last

    def _forward(self, ids: torch.Tensor, cache: DynamicCache) -> torch.Tensor:
        """The greedy next token of each row, (rows, 1)."""
        out = self._model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return out.logits[:, -1].argmax(dim=-1, keepdim=True)


if __name__ == "__main__":
    serve(TransformersEngine())
