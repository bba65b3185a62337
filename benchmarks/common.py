"""What the benchmarks of this folder share: the model, the facts of a run, result files."""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def parser(module: str, doc: str | None) -> argparse.ArgumentParser:
    """With what every benchmark takes: --model and --json."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=doc)
    made.add_argument("--model", default="smollm2-135m", metavar="MODEL",
                      help="alias, GGUF file or folder (default %(default)s)")
    made.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    return made


def model_path(name: str) -> str:
    """The file an alias names."""
    from octavo.weights.hub import resolve

    return str(resolve(name))


def facts(load_before: float | None = None) -> dict[str, Any]:
    """Machine, versions, command and time of a run."""
    from octavo.bench.machine_probe import cpu_model

    return {
        "cpu": cpu_model(), "num_cpus": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(), "python": platform.python_version(),
        "octavo": importlib.metadata.version("octavo"), "commit": _commit(),
        "command": " ".join(["python", "-m", *_command()]),
        "load_average_before": load_before,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def write_json(path: Path | None, kind: str, data: dict[str, Any]) -> None:
    """The results under "format": octavo-KIND/1, complete or not at all."""
    if path is None:
        return
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"format": f"octavo-{kind}/1", **data}, indent=1) + "\n")
    part.replace(path)


def _command() -> list[str]:
    """Module and arguments, paths shortened to names."""
    module = Path(sys.argv[0]).resolve()
    if module.is_relative_to(ROOT):
        name = ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    else:
        name = module.name
    return [name, *(Path(arg).name if "/" in arg else arg for arg in sys.argv[1:])]


def _commit() -> str | None:
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"],
                          capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
