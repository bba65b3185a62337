"""Tokens a second of one request, and why it ended, for people."""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.outputs import RequestOutput


class Speed:
    """Starts counting when it is made. Feed it each delta output of one request.

    max_tokens: of the request; max_model_len: the engine's. They tell what ended the output.
    """

    def __init__(self, *, max_tokens: int | None, max_model_len: int) -> None:
        self._max_tokens = max_tokens
        self._max_model_len = max_model_len
        self._started = time.monotonic()
        self._first: float | None = None
        self._last = self._started
        self._num_tokens = 0
        self._num_first = 0
        self._num_prompt = 0
        self._num_cached = 0
        self._seed: int | None = None
        self._end: str | None = None

    def observe(self, output: "RequestOutput") -> None:
        """One delta."""
        num_new = sum(len(part.token_ids) for part in output.outputs)
        self._num_prompt = len(output.prompt_token_ids)
        self._num_cached = output.num_cached_tokens
        if num_new:
            self._last = time.monotonic()
            if self._first is None:
                self._first, self._num_first = self._last, num_new
            self._num_tokens += num_new
            self._seed = output.outputs[0].seed
        for part in output.outputs:
            if part.finish_reason is not None:
                self._end = self._why(part.finish_reason, part.stop_reason)

    def _why(self, finish_reason: str, stop_reason: str | int | None) -> str:
        if finish_reason == "stop":
            if stop_reason is None:
                return "end of text"
            kind = "token" if isinstance(stop_reason, int) else "text"
            return f"stop {kind} {stop_reason!r}"
        if finish_reason != "length":
            return finish_reason
        if self._max_tokens is not None and self._num_tokens >= self._max_tokens:
            return "max tokens"
        if self._num_prompt + self._num_tokens >= self._max_model_len:
            return "context full"
        return "KV cache full"

    @property
    def num_tokens(self) -> int:
        """Tokens generated so far."""
        return self._num_tokens

    def line(self) -> str:
        """The figures in one line. The rate is that of the tokens behind the first."""
        parts = [f"{self._num_prompt} prompt tokens"]
        if self._num_cached:
            parts[0] += f" ({self._num_cached} cached)"
        parts.append(f"{self._num_tokens} generated")
        if self._first is not None:
            parts.append(f"first after {self._first - self._started:.2f} s")
            behind = self._num_tokens - self._num_first
            if behind and self._last > self._first:
                parts.append(f"{behind / (self._last - self._first):.1f} tok/s")
            parts.append(f"seed {self._seed}")
        if self._end is not None:
            parts.append(f"stopped at: {self._end}")
        return ", ".join(parts)
