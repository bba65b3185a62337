"""What Ollama's API tells of the one model that is served: /api/tags, /api/ps, /api/show.

Reads the model file's head once, in a thread; knows no request.
"""

import datetime
import hashlib
import math
import os
from collections import Counter
from typing import Any

from octavo.errors import OctavoError
from octavo.server.ollama.options import tagged
from octavo.server.state import ServerState
from octavo.weights.model_file import open_model

# A model that is served stays; clients want a time.
_NEVER = "9999-12-31T23:59:59Z"


class Catalogue:
    """The model under all its names. Every method may block on the disk, once."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._facts: dict[str, Any] | None = None

    def tags(self) -> dict[str, Any]:
        """GET /api/tags."""
        return {"models": [self._card(name) for name in self._state.names]}

    def running(self) -> dict[str, Any]:
        """GET /api/ps: nothing while the model loads."""
        if not self._state.llm.is_ready:
            return {"models": []}
        return {"models": [
            {k: v for k, v in self._card(name).items() if k != "modified_at"}
            | {"expires_at": _NEVER, "size_vram": 0,
               "context_length": self._state.max_model_len} for name in self._state.names]}

    def show(self) -> dict[str, Any]:
        """POST /api/show."""
        facts, formats = self._read(), self._state.formats
        capabilities = ["completion"]
        if not self._state.llm.chat_template.is_missing:
            capabilities.append("tools")
        if formats.reasoning is not None:
            capabilities.append("thinking")
        advised = self._state.llm.get_default_sampling_params()
        parameters = {name: getattr(advised, name) for name in ("temperature", "top_k", "top_p")}
        return {
            "modelfile": f"# {self._state.names[0]}, served by Octavo", "license": "",
            "parameters": "\n".join(f"{name} {value}" for name, value in parameters.items()),
            "template": self._state.llm.chat_template.source or "",
            "details": facts["details"], "model_info": facts["model_info"],
            "capabilities": capabilities, "modified_at": facts["modified_at"],
        }

    def _card(self, name: str) -> dict[str, Any]:
        facts = self._read()
        return {"name": tagged(name), "model": tagged(name), "modified_at": facts["modified_at"],
                "size": facts["size"], "digest": facts["digest"], "details": facts["details"]}

    def _read(self) -> dict[str, Any]:
        if self._facts is None:
            self._facts = _facts(self._state)
        return self._facts


def _facts(state: ServerState) -> dict[str, Any]:
    """Of the file; what is unknown where it is gone meanwhile is left empty."""
    path = state.llm.config.model.path
    try:
        changed = os.stat(path).st_mtime
    except OSError:
        changed = float(state.created)
    found = {
        "modified_at": datetime.datetime.fromtimestamp(changed, datetime.UTC)
        .isoformat().replace("+00:00", "Z"),
        "size": 0, "details": _details("", "", "", ""),
        "model_info": {"general.architecture": "", "general.parameter_count": 0},
    }
    try:
        with open_model(path) as model_file:
            config = model_file.config
            num_weights = sum(math.prod(t.shape) for t in model_file.tensors.values())
            kinds: Counter[str] = Counter()
            for tensor in model_file.tensors.values():
                kinds[tensor.quant] += tensor.nbytes
            found["size"] = model_file.nbytes
            arch = config.architecture
            level = model_file.quantization or max(kinds, key=kinds.__getitem__)
            found["details"] = _details(model_file.format, arch, _short(num_weights), level)
            found["model_info"] = {
                "general.architecture": arch, "general.parameter_count": num_weights,
                f"{arch}.context_length": config.max_position_embeddings,
                f"{arch}.embedding_length": config.hidden_size,
                f"{arch}.block_count": config.num_layers,
                f"{arch}.feed_forward_length": config.intermediate_size,
                f"{arch}.attention.head_count": config.num_heads,
                f"{arch}.attention.head_count_kv": config.num_kv_heads,
                f"{arch}.vocab_size": config.vocab_size,
            }
    except OctavoError:
        pass
    # names the file, not its bytes: reading gigabytes for a label would stall the server
    text = f"{path}|{found['size']}|{changed}"
    found["digest"] = hashlib.sha256(text.encode()).hexdigest()
    return found


def _details(form: str, family: str, parameter_size: str, level: str) -> dict[str, Any]:
    return {"parent_model": "", "format": form, "family": family,
            "families": [family] if family else [], "parameter_size": parameter_size,
            "quantization_level": level}


def _short(number: int) -> str:
    """134515008 -> "134.52M"."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if number >= size:
            return f"{number / size:.2f}".rstrip("0").rstrip(".") + letter
    return str(number)
