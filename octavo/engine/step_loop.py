"""StepLoop: steps an engine core, and brings each step's news to whoever wants them.

News are delivered while the next step runs, where that is prepared, and at once where it is not:
so the first token of a request, its last one and whatever is alone never wait for a step.
Knows neither what news mean nor who gets them.
"""

from collections.abc import Callable
from typing import Protocol

from octavo.core.messages import EngineCoreOutputs


class Steps(Protocol):
    """What is stepped: an EngineCore, or its client in this process."""

    @property
    def is_prepared(self) -> bool: ...
    def step(self, meanwhile: Callable[[], None] | None = None) -> EngineCoreOutputs: ...


class StepLoop:
    """One caller at a time. deliver: called with the news of each step, in order, each once,
    possibly in another thread while step() runs."""

    def __init__(self, core: Steps, deliver: Callable[[EngineCoreOutputs], None]) -> None:
        self._core = core
        self._deliver = deliver
        self._news: EngineCoreOutputs | None = None

    def step(self) -> None:
        """Runs one step. Raises what the step or a delivery raises; news of earlier steps are
        delivered first, even then."""
        outputs = self._core.step(self._deliver_news if self._news is not None else None)
        assert self._news is None, "news were not delivered"
        self._news = outputs
        if not self._core.is_prepared:
            self._deliver_news()

    def settle(self) -> None:
        """Delivers what waits, unless a prepared step is to come. Call when requests were
        dropped."""
        if self._news is not None and not self._core.is_prepared:
            self._deliver_news()

    def _deliver_news(self) -> None:
        news, self._news = self._news, None
        assert news is not None
        self._deliver(news)
