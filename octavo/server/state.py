"""What the routes of one server share: the engine, the names it is served under, the ids it gives.

Knows no HTTP.
"""

import hashlib
import itertools
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from prometheus_client.registry import CollectorRegistry

from octavo import __version__
from octavo.config import EngineConfig, ServerSection
from octavo.core.messages import SchedulerStats
from octavo.core.sampling_params import SamplingParams
from octavo.engine.live_feed import LiveListener
from octavo.engine.metrics import FrontEndMetrics
from octavo.engine.output_collector import OutputCollector
from octavo.engine.outputs import OutputKind
from octavo.errors import InvalidRequestError, ModelNotFoundError, OctavoError
from octavo.server.http_metrics import HttpMetrics
from octavo.server.request_record import current_record
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.tools.plan import ModelFormats

_MAX_REQUEST_ID_CHARS = 128


class ServedEngine(Protocol):
    """What the server needs of an engine: AsyncLLM has it."""

    config: EngineConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    metrics: FrontEndMetrics
    metrics_registry: CollectorRegistry

    @property
    def is_ready(self) -> bool: ...
    @property
    def errored(self) -> OctavoError | None: ...
    @property
    def max_num_samples(self) -> int: ...
    @property
    def num_unfinished_requests(self) -> int: ...
    @property
    def engine_pid(self) -> int | None: ...
    async def wait_ready(self) -> Any: ...
    def get_default_sampling_params(self) -> SamplingParams: ...
    async def add_request(self, prompt: Any, sampling_params: SamplingParams, request_id: str, *,
                          priority: int = 0, output_kind: OutputKind = "delta",
                          strict_max_tokens: bool = True, score_only: bool = False
                          ) -> OutputCollector: ...
    async def add_requests(self, requests: Sequence[tuple[Any, SamplingParams, str]], *,
                           output_kind: OutputKind = "delta", score_only: bool = False
                           ) -> list[OutputCollector]: ...
    async def chat_prompt(self, messages: Any, *, add_generation_prompt: bool = True,
                          continue_final_message: bool = False, tools: Any = None,
                          chat_template_kwargs: Mapping[str, Any] | None = None
                          ) -> dict[str, Any]: ...
    async def abort(self, request_id: str) -> None: ...
    def watch(self, interval_s: float = 0.1) -> LiveListener: ...
    async def stats(self) -> SchedulerStats: ...
    async def shutdown(self, *, drain: bool = False, timeout: float = 30.0) -> None: ...


class ServerState:
    """One per server. `draining`: no new work is taken, running requests may finish."""

    def __init__(self, llm: ServedEngine, section: ServerSection) -> None:
        self.llm = llm
        self.section = section
        self.names = llm.config.model.served_model_names
        self.created = int(time.time())
        self.draining = False
        self.fingerprint = _fingerprint(llm.config)
        self.formats = ModelFormats.of(
            llm.chat_template, llm.tokenizer, tool_call_parser=section.tool_call_parser,
            reasoning_parser=section.reasoning_parser)
        self.http_metrics = HttpMetrics(llm.metrics_registry,
                                        prefix=llm.config.server.metrics_prefix)
        self._counter = itertools.count()

    @property
    def max_model_len(self) -> int:
        return self.llm.config.model.max_model_len

    def model_name(self, asked: str | None) -> str:
        """The name to answer under. Raises ModelNotFoundError for one that is not served."""
        if asked is not None and asked not in self.names:
            shown = asked if len(asked) <= 200 else asked[:197] + "..."
            raise ModelNotFoundError(
                f"the model {shown!r} is not served here: use {', '.join(self.names)}",
                param="model")
        name = self.names[0] if asked is None else asked
        record = current_record()
        if record is not None:
            record.model = name
        return name

    def response_id(self, prefix: str, asked: str | None) -> str:
        """The id of an answer: the client's, or a random one. Raises InvalidRequestError."""
        if asked is None:
            return f"{prefix}-{secrets.token_hex(16)}"
        if not asked or len(asked) > _MAX_REQUEST_ID_CHARS or not asked.isprintable():
            raise InvalidRequestError(
                f"request_id must be 1 to {_MAX_REQUEST_ID_CHARS} printable characters",
                param="request_id")
        return f"{prefix}-{asked}"

    def engine_id(self, response_id: str) -> str:
        """An engine request id nobody else has, even where clients choose equal ids."""
        return f"{response_id}.{next(self._counter)}"


def _fingerprint(config: EngineConfig) -> str:
    """Changes when the same seed may give other tokens: version, model, backend, KV dtype."""
    model = config.model
    text = f"{__version__}|{model.path}|{model.backend}|{config.cache.dtype}"
    return f"octavo-{__version__}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
