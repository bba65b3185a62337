"""The backend's door. Importing this does not need the native module; loading a model does."""

from typing import Any

from octavo.backends.cpu.lowering import lower
from octavo.backends.cpu.native_model import NativeModel
from octavo.backends.seam import KVOptions, WeightSource
from octavo.errors import ConfigError
from octavo.graph.graph import Graph
from octavo.graph.step_arrays import StepLimits


class CpuBackend:
    """See seam.Backend."""

    name = "cpu"

    def load(
        self,
        graph: Graph,
        weights: WeightSource,
        *,
        kv: KVOptions,
        limits: StepLimits,
        num_threads: int,
    ) -> NativeModel:
        """Packs the weights. Raises UnsupportedModelError where an op has no native form, and
        ConfigError where the native module cannot run here."""
        native = native_module()
        plan = lower(graph)
        return NativeModel(
            native, plan, graph, weights, kv=kv, limits=limits, num_threads=num_threads
        )


def native_problem() -> str | None:
    """Why the native module cannot be used on this machine, in one line, or None."""
    try:
        import octavo._native  # noqa: F401
    except ModuleNotFoundError:
        return "it was not built"
    except ImportError as error:
        return " ".join(str(error).split())
    return None


def native_module() -> Any:
    """octavo._native, or ConfigError saying why it is not there."""
    try:
        from octavo import _native
    except ImportError as error:
        raise ConfigError(
            f"backend 'cpu' needs the native module ({error}); reinstall with a C++17 compiler "
            "or use backend 'reference'",
            param="backend",
        ) from None
    return _native
