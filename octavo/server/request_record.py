"""RequestRecord: what is known of one HTTP request when it is over, for log, metrics and traces.

The gate makes one for each request; whoever serves the request finds it by current_record(). It
holds no text of prompts or answers, and no key.
"""

import contextvars
import dataclasses
import time

from octavo.core.sampling_params import SamplingParams
from octavo.engine.metrics import REASONS
from octavo.engine.outputs import RequestMetrics

OTHER_ROUTE = "other"  # the route of a path that is none: clients choose paths, labels are bounded

_current: contextvars.ContextVar["RequestRecord | None"] = contextvars.ContextVar(
    "octavo_request_record", default=None)


@dataclasses.dataclass(slots=True)
class RequestRecord:
    """One HTTP request.

    Attributes:
        trace_headers: traceparent and tracestate, where the client sent them.
        started_s: monotonic clock; started_ns: unix time.
        route: the path of its route as it is written there, {parameters} and all.
        status: 0 until the answer begins.
        model: the name it is answered under. response_id: the answer's id.
        params: of the first prompt.
        generated: one entry for each prompt that the engine took.
    """

    request_id: str
    method: str
    path: str
    trace_headers: dict[str, str] = dataclasses.field(default_factory=dict)
    started_s: float = dataclasses.field(default_factory=time.monotonic)
    started_ns: int = dataclasses.field(default_factory=time.time_ns)
    duration_s: float = 0.0
    route: str = OTHER_ROUTE
    status: int = 0
    model: str | None = None
    response_id: str | None = None
    params: SamplingParams | None = None
    generated: list[RequestMetrics] = dataclasses.field(default_factory=list)

    def enter(self) -> "contextvars.Token[RequestRecord | None]":
        """Makes it the current one of this task and the tasks it starts."""
        return _current.set(self)

    @property
    def num_prompt_tokens(self) -> int:
        return sum(m.num_prompt_tokens for m in self.generated)

    @property
    def num_cached_tokens(self) -> int:
        return sum(m.num_cached_tokens for m in self.generated)

    @property
    def num_generation_tokens(self) -> int:
        return sum(m.num_generation_tokens for m in self.generated)

    @property
    def finish_reasons(self) -> list[str]:
        """One a sample that has ended."""
        return [reason for m in self.generated for reason in m.finish_reasons]

    @property
    def finish_reason(self) -> str | None:
        """The one that most wants attention."""
        return min(self.finish_reasons, key=REASONS.index, default=None)

    @property
    def ttft_s(self) -> float | None:
        """From the request's arrival at the server to its first token."""
        times = [m.first_token_time for m in self.generated if m.first_token_time is not None]
        return min(times) - self.started_s if times else None


def current_record() -> RequestRecord | None:
    """That of the request being served; None outside of any."""
    return _current.get()


def leave(token: "contextvars.Token[RequestRecord | None]") -> None:
    """Ends what `enter` began."""
    _current.reset(token)
