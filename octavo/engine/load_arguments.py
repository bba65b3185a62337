"""What may be wrong with a constructor's arguments before any file is opened.

Numbers are config_resolve.py's business. Knows vLLM's names for things done otherwise here.
"""

import difflib
import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from octavo.core.refusals import short
from octavo.errors import ConfigError

# vLLM's argument -> what to do here
_ELSEWHERE = {
    "tokenizer": "the tokenizer comes with the model; leave it out",
    "tokenizer_mode": "the tokenizer comes with the model; leave it out",
    "skip_tokenizer_init": "the tokenizer comes with the model; leave it out",
    "revision": "give the path of a folder with that revision as model",
    "tokenizer_revision": "the tokenizer comes with the model; leave it out",
    "trust_remote_code": "no code of a model is ever run; leave it out",
    "dtype": "weights run as the file stores them; leave it out (or give quantization)",
    "load_format": "the format is seen in the file; leave it out",
    "download_dir": "set the environment variable OCTAVO_CACHE instead",
    "tensor_parallel_size": "the model runs on all cores of one machine; leave it out "
                            "(num_threads)",
    "pipeline_parallel_size": "the model runs on all cores of one machine; leave it out "
                              "(num_threads)",
    "data_parallel_size": "the model runs on all cores of one machine; leave it out "
                          "(num_threads)",
    "distributed_executor_backend": "the model runs in one process; leave it out",
    "gpu_memory_utilization": "the KV cache lies in main memory; give kv_cache_memory_bytes",
    "swap_space": "preempted requests are computed again; leave it out",
    "cpu_offload_gb": "everything lies in main memory; leave it out",
    "num_gpu_blocks_override": "give num_blocks",
    "enforce_eager": "nothing is captured or compiled; leave it out",
    "max_seq_len_to_capture": "nothing is captured or compiled; leave it out",
    "compilation_config": "nothing is captured or compiled; leave it out",
    "device": "give backend",
    "disable_log_stats": "nothing is logged; leave it out (get_metrics)",
    "enable_lora": "adapters are not supported; merge them into the weights",
    "speculative_config": "speculative decoding is not supported; leave it out",
    "guided_decoding_backend": "there is one backend for structured outputs; leave it out",
}
_MODEL_FORMS = "give an alias, a GGUF file, a Hugging Face folder or a hub repo id"


def model_argument(model: object) -> str:
    """The model's name or path as text. Raises ConfigError."""
    if isinstance(model, os.PathLike):
        model = os.fspath(model)
    if not isinstance(model, str):
        raise ConfigError(f"model is {short(model)}: {_MODEL_FORMS}", param="model")
    if not model.strip():
        raise ConfigError(f"model is empty: {_MODEL_FORMS}", param="model")
    return model


def template_argument(path: object) -> str | None:
    """The path of a chat template as text, or None. Raises ConfigError unless a file is there."""
    if path is None:
        return None
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, str) or not path:
        raise ConfigError(f"chat_template is {short(path)}: give the path of a Jinja file",
                          param="chat_template")
    try:
        found = Path(path).is_file()
    except (ValueError, OSError):  # no path can be like this
        found = False
    if not found:
        wrong = "a folder" if os.path.isdir(path) else "no such file"
        raise ConfigError(f"chat_template {short(path)}: {wrong}; give the path of a Jinja file",
                          param="chat_template")
    return path


def refuse_unknown(arguments: Mapping[str, object], function: Callable[..., Any]) -> None:
    """Raises ConfigError that names the first of the arguments, which `function` does not have,
    and what to give instead."""
    for name, value in arguments.items():
        said = f"{name} is {short(value)}: "
        if name in _ELSEWHERE:
            raise ConfigError(said + _ELSEWHERE[name], param=name)
        known = [p.name for p in inspect.signature(function).parameters.values()
                 if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"]
        near = difflib.get_close_matches(name, known, n=1)
        fix = f"did you mean {near[0]}?" if near else "leave it out"
        raise ConfigError(f"{said}there is no such argument; {fix}", param=name)
