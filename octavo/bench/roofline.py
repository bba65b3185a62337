"""The least time a step can take on a machine: bytes it must read, products it must make.

A step reads every packed matrix once and each sequence's KV once; its multiply-accumulates run at
the measured peak of the form its storage needs. The bound is the larger of the two times. Knows
the plan's matrices; runs nothing.
"""

import dataclasses

from octavo.backends.cpu.lowering import lower
from octavo.backends.cpu.plan import MatrixSpec, PlanSpec, ProjectionSpec
from octavo.backends.cpu.storage import storage_of
from octavo.bench.machine_probe import MachineProbe
from octavo.config import EngineConfig
from octavo.kvcache.spec import KVCacheSpec
from octavo.models.registry import record
from octavo.weights.model_config import ModelConfig
from octavo.weights.model_file import ModelFile, open_model

# what attention multiplies with: K and V as they are stored
_KV_FORM = {"f32": "f32", "bf16": "bf16", "int8": "int8"}


@dataclasses.dataclass(slots=True, frozen=True)
class ModelCost:
    """What a model makes a machine do.

    weight_bytes: packed bytes a step reads (an embedding table apart from the head is not read).
    layer_macs: multiply-accumulates of a token in all linear layers, by form (int8, bf16, f32).
    head_macs: the same for one row of logits. kv_bytes_per_token. attention_macs: of one query
    token over one key, all layers; attention_form: how they are multiplied.
    """

    weight_bytes: int
    layer_macs: dict[str, int]
    head_macs: dict[str, int]
    kv_bytes_per_token: float
    attention_macs: int
    attention_form: str


@dataclasses.dataclass(slots=True, frozen=True)
class Bound:
    """Seconds some work takes at least: for its reads, and for its products."""

    memory_s: float
    compute_s: float

    @property
    def seconds(self) -> float:
        """The larger one."""
        return max(self.memory_s, self.compute_s)


def model_cost(config: EngineConfig) -> ModelCost:
    """The cost of the config's model as the cpu backend stores it."""
    with open_model(config.model.path) as file:
        plan = lower(record(file.config, file.tensors.keys()))
        projections = _layer_projections(plan)
        layers = _macs(projections, file)
        head = _macs([plan.head], file)
        matrices = {p.matrix for p in projections} | {plan.head.matrix}
        weight_bytes = sum(_packed_bytes(m, file) for m in matrices)
        model = file.config
    spec = KVCacheSpec(num_layers=model.num_layers, num_kv_heads=model.num_kv_heads,
                       head_dim=model.head_dim, block_size=config.cache.block_size,
                       dtype=config.cache.dtype)
    return ModelCost(
        weight_bytes=weight_bytes, layer_macs=layers, head_macs=head,
        kv_bytes_per_token=spec.bytes_per_block / config.cache.block_size,
        attention_macs=_attention_macs(model), attention_form=_KV_FORM[config.cache.dtype],
    )


def prefill_bound(cost: ModelCost, probe: MachineProbe, *, threads: int, tokens: int,
                  step_tokens: int) -> Bound:
    """One prompt of `tokens` tokens in steps of at most `step_tokens`, one row of logits."""
    num_steps = -(-tokens // step_tokens)
    read = num_steps * cost.weight_bytes
    pairs = tokens * (tokens + 1) // 2  # causal
    seconds = _seconds(cost.layer_macs, probe, threads) * tokens
    seconds += _seconds(cost.head_macs, probe, threads)
    seconds += _seconds({cost.attention_form: cost.attention_macs * pairs}, probe, threads)
    return Bound(read / probe.bandwidth(cost.weight_bytes, threads), seconds)


def decode_bound(cost: ModelCost, probe: MachineProbe, *, threads: int, sequences: int,
                 context: float) -> Bound:
    """One decode step of `sequences` sequences with `context` tokens each."""
    read = cost.weight_bytes + sequences * context * cost.kv_bytes_per_token
    seconds = sum(_seconds(macs, probe, threads) for macs in (cost.layer_macs, cost.head_macs))
    attention = {cost.attention_form: round(cost.attention_macs * context)}
    seconds += _seconds(attention, probe, threads)
    return Bound(read / probe.bandwidth(int(read), threads), sequences * seconds)


def _seconds(macs: dict[str, int], probe: MachineProbe, threads: int) -> float:
    return sum(count / probe.peak(form, threads) for form, count in macs.items())


def _layer_projections(plan: PlanSpec) -> list[ProjectionSpec]:
    found = []
    for entry in plan.records:
        values = (getattr(entry, field.name) for field in dataclasses.fields(entry))
        found += [value for value in values if isinstance(value, ProjectionSpec)]
    return found


def _macs(projections: list[ProjectionSpec], file: ModelFile) -> dict[str, int]:
    found: dict[str, int] = {}
    for projection in projections:
        matrix = projection.matrix
        form = _form(file.quant_of(matrix.tensor), matrix.k)
        found[form] = found.get(form, 0) + matrix.rows * matrix.k
    return found


def _form(quant: str, k: int) -> str:
    layout = storage_of(quant, k).layout
    return layout if layout in ("f32", "bf16") else "int8"


def _packed_bytes(matrix: MatrixSpec, file: ModelFile) -> int:
    storage = storage_of(file.quant_of(matrix.tensor), matrix.k)
    try:
        from octavo import _native
    except ImportError:
        return file.tensors[matrix.tensor].nbytes  # NumPy reads them as they are in the file
    return int(_native.arena_bytes(storage.type_id, matrix.rows, matrix.k, matrix.group_rows))


def _attention_macs(model: ModelConfig) -> int:
    """Scores and weighted sum: two products of head_dim for each query head and layer. A sliding
    window makes it less; the bound then is too kind by that."""
    return 2 * model.num_layers * model.num_heads * model.head_dim
