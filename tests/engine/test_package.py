"""The package's front: names, and an import that loads nothing heavy."""

import subprocess
import sys

import octavo

PUBLIC = {
    "LLM", "AsyncLLM", "SamplingParams", "StructuredOutputs", "EngineConfig", "EngineArgs",
    "RequestOutput", "CompletionOutput", "Logprob", "OctavoError", "InvalidRequestError",
    "ContextLengthError", "RequestTooLargeError", "ModelNotFoundError", "ModelLoadError",
    "UnsupportedModelError", "ConfigError", "QueueFullError", "EngineLoadingError",
    "EngineDeadError", "__version__",
}


def test_public_names() -> None:
    assert set(octavo.__all__) == PUBLIC
    for name in PUBLIC:
        assert getattr(octavo, name) is not None
    assert set(dir(octavo)) == PUBLIC
    assert not hasattr(octavo, "no_such_name")


def test_importing_octavo_loads_nothing_heavy() -> None:
    code = ("import sys, octavo; "
            "print([m for m in ('numpy', 'tokenizers', 'msgspec', 'jinja2', 'asyncio') "
            "if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
