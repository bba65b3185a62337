"""The executor seam: where a step runs. Asynchronous, so that overlap and simulation fit in.

Implementations: executor/inproc.py (this process) and testing/fake_executor.py (no model).
"""

from collections.abc import Mapping
from typing import Protocol

from octavo.core.step import ModelRunnerOutput, SchedulerOutput


class StepHandle(Protocol):
    """A step that was submitted. Opaque; goes back to the executor that made it."""


class Executor(Protocol):
    """Runs steps in submission order."""

    def submit(self, so: SchedulerOutput) -> StepHandle:
        """Starts a step. An error of the step surfaces in collect()."""

    def collect(self, handle: StepHandle) -> ModelRunnerOutput:
        """Waits for the step and returns its output, or raises what went wrong."""

    def describe(self) -> Mapping[str, str]:
        """Facts for people: backend, isa, threads, tensor storage."""

    def shutdown(self) -> None:
        """Frees the model and its threads. Idempotent."""
