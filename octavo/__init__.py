"""Octavo: LLM inference and serving with bitwise-invariant output.

    from octavo import LLM, SamplingParams
    print(LLM("smollm2-135m").generate("The capital of France is")[0].outputs[0].text)

Names load when first used, so that importing the package is quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.config_resolve import EngineArgs
    from octavo.core.sampling_params import SamplingParams
    from octavo.core.structured_outputs import StructuredOutputs
    from octavo.engine.async_llm import AsyncLLM
    from octavo.engine.llm import LLM
    from octavo.engine.outputs import CompletionOutput, Logprob, RequestOutput
    from octavo.errors import (
        ConfigError,
        ContextLengthError,
        EngineDeadError,
        EngineLoadingError,
        InvalidRequestError,
        ModelLoadError,
        ModelNotFoundError,
        OctavoError,
        QueueFullError,
        RequestTooLargeError,
        UnsupportedModelError,
    )

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "ConfigError",
    "ContextLengthError",
    "EngineArgs",
    "EngineConfig",
    "EngineDeadError",
    "EngineLoadingError",
    "InvalidRequestError",
    "Logprob",
    "ModelLoadError",
    "ModelNotFoundError",
    "OctavoError",
    "QueueFullError",
    "RequestOutput",
    "RequestTooLargeError",
    "SamplingParams",
    "StructuredOutputs",
    "UnsupportedModelError",
    "__version__",
]

_HOME = {
    "LLM": "octavo.engine.llm",
    "AsyncLLM": "octavo.engine.async_llm",
    "CompletionOutput": "octavo.engine.outputs",
    "EngineArgs": "octavo.config_resolve",
    "EngineConfig": "octavo.config",
    "Logprob": "octavo.engine.outputs",
    "RequestOutput": "octavo.engine.outputs",
    "SamplingParams": "octavo.core.sampling_params",
    "StructuredOutputs": "octavo.core.structured_outputs",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME.get(name, "octavo.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
