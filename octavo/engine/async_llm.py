"""AsyncLLM: the asyncio front of one engine, for servers. (Signatures first; bodies follow.)

One reader task; a bounded queue per request; cancelling a generator aborts its request.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal

from octavo.config import EngineConfig
from octavo.core.messages import EngineReady, SchedulerStats
from octavo.core.sampling_params import SamplingParams
from octavo.engine.outputs import OutputKind, RequestOutput
from octavo.errors import EngineDeadError

# str | token ids | {"prompt": str} | {"prompt_token_ids": [...]}
Prompt = str | Sequence[int] | dict[str, Any]


class AsyncLLM:
    """Runs requests on an engine in its own process (or "inproc": in a thread).

    Construction starts loading and returns at once (the tokenizer is loaded here, so a broken
    model file raises here). `await wait_ready()` waits for the engine.
    """

    config: EngineConfig
    tokenizer: Any  # octavo.tokenizer.Tokenizer
    chat_template: Any  # octavo.tokenizer.ChatTemplate or None
    engine_info: EngineReady | None  # limits, once ready

    @classmethod
    def from_config(cls, config: EngineConfig, *, engine: Literal["process", "inproc"] = "process",
                    on_death: Callable[[EngineDeadError], None] | None = None) -> "AsyncLLM":
        """An AsyncLLM of a resolved config. on_death: called once, in the event loop, when the
        engine dies unasked; by then every request has failed with EngineDeadError."""

    async def wait_ready(self) -> EngineReady:
        """Returns once the engine is loaded. Raises ModelLoadError, ConfigError, ... (the typed
        error of the engine process) or EngineDeadError."""

    @property
    def is_ready(self) -> bool:
        """Loaded and alive."""

    @property
    def errored(self) -> EngineDeadError | None:
        """Why the engine is gone, or None."""

    def get_default_sampling_params(self) -> SamplingParams:
        """SamplingParams with the model's generation_config defaults (a fresh copy)."""

    async def generate(self, prompt: Prompt, sampling_params: SamplingParams, request_id: str, *,
                       priority: int = 0, output_kind: OutputKind = "delta",
                       strict_max_tokens: bool = True) -> AsyncGenerator[RequestOutput, None]:
        """Yields outputs until one has finished=True. Closing or cancelling aborts the request.

        Validation errors are raised at the first `__anext__`: InvalidRequestError,
        ContextLengthError, RequestTooLargeError, QueueFullError, EngineLoadingError,
        EngineDeadError. A sample that failed inside the engine raises OctavoError.
        strict_max_tokens: an explicit max_tokens beyond the context is a ContextLengthError;
        otherwise it is cut. Use `check()` first for errors before a response starts.
        """

    async def check(self, prompt: Prompt, sampling_params: SamplingParams, *,
                    strict_max_tokens: bool = True) -> int:
        """Raises what generate() would raise at once; returns the number of prompt tokens."""

    async def chat_prompt(self, messages: Sequence[dict[str, Any]], *,
                          add_generation_prompt: bool = True,
                          continue_final_message: bool = False,
                          chat_template_kwargs: dict[str, Any] | None = None) -> dict[str, Any]:
        """{"prompt": rendered text, "prompt_token_ids": ids} of a conversation."""

    async def abort(self, request_id: str) -> None:
        """Ends a request; its generator finishes with finish_reason "abort"."""

    async def stats(self) -> SchedulerStats:
        """The stats of the engine's last step."""

    async def reset_prefix_cache(self) -> None:
        """Drops every cached block no request holds."""

    async def shutdown(self, *, drain: bool = False, timeout: float = 30.0) -> None:
        """Stops. With drain, running requests may finish for up to `timeout` seconds."""

    @property
    def metrics_registry(self) -> Any:
        """prometheus_client registry with Octavo's collector."""
