"""The graph-backend seam: how a recorded Graph becomes something that runs steps.

Two implementations: backends/reference (NumPy, the meaning) and backends/cpu (native).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy.typing as npt

from octavo.graph.graph import Graph
from octavo.graph.step_arrays import StepArrays, StepLimits, StepOutputs


@dataclasses.dataclass(slots=True, frozen=True)
class KVOptions:
    """Shape of the paged KV cache: slots of block b are b * block_size .. + block_size - 1."""

    block_size: int
    num_blocks: int
    dtype: str  # f32 | bf16 | int8
    merge_shared_prefix: bool = True  # blocks that sequences share may be read once for all of them


class WeightSource(Protocol):
    """What a backend needs of a model file (weights/model_file.py)."""

    def quant_of(self, name: str) -> str:
        """Storage type of a tensor: F32, F16, BF16, Q4_0, ..."""

    def raw(self, name: str) -> npt.NDArray:
        """uint8 [rows, bytes_per_row], a view of the file."""

    def f32(self, name: str) -> npt.NDArray:
        """float32 [rows, cols] (or [n] for vectors), dequantized."""

    def release(self, name: str) -> None:
        """The raw pages of this tensor are not needed any more."""


class LoadedModel(Protocol):
    """A lowered graph with its weights and KV cache. One caller at a time."""

    def step(self, arrays: StepArrays, *, want_logits: bool = False) -> StepOutputs:
        """Runs all sections once over the step's rows, then samples. One native call."""

    def copy_slots(self, copies: Sequence[tuple[int, int, int]]) -> None:
        """(source block, destination block, leading slots): in all layers, in order."""

    def describe(self) -> Mapping[str, str]:
        """Facts for people: tensor -> how it is stored in memory; isa; threads."""

    def close(self) -> None:
        """Frees memory and threads. Idempotent."""


class Backend(Protocol):
    """Lowers a graph."""

    name: str

    def load(self, graph: Graph, weights: WeightSource, *, kv: KVOptions, limits: StepLimits,
             num_threads: int) -> LoadedModel: ...
