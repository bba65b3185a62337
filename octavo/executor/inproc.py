"""InprocExecutor: runs each step in the calling thread, when it is collected."""

import dataclasses
from collections.abc import Mapping

from octavo.core.step import ModelRunnerOutput, SchedulerOutput
from octavo.executor.seam import StepHandle
from octavo.worker.worker import Worker


@dataclasses.dataclass(slots=True, frozen=True)
class _Pending:
    scheduler_output: SchedulerOutput


class InprocExecutor:
    """One worker, no threads of its own (the backend has its pool)."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def submit(self, so: SchedulerOutput) -> StepHandle:
        return _Pending(so)

    def collect(self, handle: StepHandle) -> ModelRunnerOutput:
        assert isinstance(handle, _Pending)
        return self._worker.execute(handle.scheduler_output)

    def describe(self) -> Mapping[str, str]:
        return self._worker.describe()

    def shutdown(self) -> None:
        self._worker.close()
