"""Graph: values, ops in sections, KV stores. What a model's definition recorded once, at load.

Knows nothing of backends, files or batches. `recorder.py` builds it.
"""

import dataclasses
from typing import Literal

from octavo.graph.ops import KVStoreSpec, Op, RowSpace, ValueId

SectionKind = Literal["prologue", "layer", "tail"]


@dataclasses.dataclass(slots=True, frozen=True)
class Value:
    """A float32 matrix [rows of `rows` space, width]."""

    id: ValueId
    rows: RowSpace
    width: int


@dataclasses.dataclass(slots=True, frozen=True)
class Section:
    """A run of ops that a backend can execute alone, given its live-in values.

    marks: name to op index within the section ("after_attention", "after_mlp"): the residual
    stream is complete behind that op.
    """

    name: str  # "prologue", "layer.0", ..., "tail"
    kind: SectionKind
    ops: tuple[Op, ...]
    live_in: tuple[ValueId, ...]
    live_out: tuple[ValueId, ...]
    marks: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True, frozen=True)
class Graph:
    """A whole model. Sections run in order; a backend may run any list of them over a row set."""

    name: str
    vocab_size: int
    hidden_size: int
    values: tuple[Value, ...]  # indexed by value id
    sections: tuple[Section, ...]
    kv_stores: dict[str, KVStoreSpec]
    logits: ValueId  # [R, vocab_size]

    @property
    def num_kv_groups(self) -> int:
        return 1 + max((s.group for s in self.kv_stores.values()), default=-1)
