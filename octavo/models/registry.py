"""Which file wires which architecture."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from octavo.errors import UnsupportedModelError
from octavo.graph.graph import Graph
from octavo.models import llama, qwen2, qwen3
from octavo.weights.model_config import ModelConfig

Record = Callable[[ModelConfig, AbstractSet[str]], Graph]

registry: dict[str, Record] = {
    "llama": llama.record,
    "mistral": llama.record,
    "qwen2": qwen2.record,
    "qwen3": qwen3.record,
}


def record(config: ModelConfig, tensor_names: AbstractSet[str]) -> Graph:
    """The graph of a model file with these settings and tensors.

    Raises UnsupportedModelError naming the architecture.
    """
    if config.architecture not in registry:
        raise UnsupportedModelError(
            f"architecture {config.architecture!r} is not supported: "
            f"supported are {', '.join(sorted(registry))}",
            param="architecture",
        )
    return registry[config.architecture](config, tensor_names)
