"""`python -m benchmarks.startup_memory`: a fresh process to its first token, and its peak memory.

In-process (LLM) and under `octavo serve`; the model file is in the page cache. Memory is PSS,
summed over the processes, the largest sample while the KV cache is being filled; the bound is
file x 1.15 + KV + 150 MB (LLM) or 250 MB (serve), with a KV cache small enough to be filled.
"""

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, facts, model_path, parser, write_json
from benchmarks.server_process import ServerProcess
from octavo.bench.process_cpu import tree_pids

MB = 10**6
KV_BYTES = 64 << 20
EXTRA_BYTES = {"LLM": 150 * MB, "serve": 250 * MB}
LIMIT_S = {"LLM": 1.5, "serve": 2.5}
_SAMPLE_S = 0.02
# together they fill the KV cache of KV_BYTES with bf16 KV of SmolLM2-135M (2,912 tokens)
_FILLERS, _FILLER_WORDS, _FILLER_TOKENS = 8, 400, 64
_CHILD = """
import json, sys
from octavo import LLM, SamplingParams
options = json.loads(sys.argv[2])
llm = LLM(sys.argv[1], **options)
llm.generate(["The capital of France is"], SamplingParams(temperature=0, max_tokens=1),
             use_tqdm=False)
print("first", flush=True)
for line in sys.stdin:
    prompts, tokens = json.loads(line)
    llm.generate(prompts, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True),
                 use_tqdm=False)
    print("filled", flush=True)
"""


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    made = parser("startup_memory", __doc__)
    made.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="of the starts")
    args = made.parse_args(argv)
    before = os.getloadavg()[0]
    model = model_path(args.model)
    starts: dict[str, list[float]] = {"LLM": [], "serve": []}
    _start_llm(model)  # bytecode and file caches
    for _ in range(args.repetitions):
        starts["LLM"].append(_start_llm(model))
        starts["serve"].append(_start_serve(model))
    size = _file_bytes(Path(model))
    peaks = {"LLM": _peak_llm(model), "serve": _peak_serve(model)}
    data: dict[str, Any] = {"facts": facts(before), "model": Path(model).name, "file_bytes": size,
                            "kv_bytes": KV_BYTES, "modes": {}}
    for mode in starts:
        data["modes"][mode] = {
            "start_s": statistics.median(starts[mode]), "starts_s": starts[mode],
            "start_limit_s": LIMIT_S[mode], "peak_pss_bytes": peaks[mode],
            "peak_limit_bytes": round(1.15 * size) + KV_BYTES + EXTRA_BYTES[mode]}
    write_json(args.json, "startup-memory", data)
    print(text(data))
    return 0


def text(data: dict[str, Any]) -> str:
    """For people."""
    lines = [f"| {data['model']} | first token, s | at most | peak PSS, MB | at most |",
             "|---|---:|---:|---:|---:|"]
    lines += [f"| {mode} | {found['start_s']:.2f} | {found['start_limit_s']} | "
              f"{found['peak_pss_bytes'] / MB:.0f} | {found['peak_limit_bytes'] / MB:.0f} |"
              for mode, found in data["modes"].items()]
    return "\n".join(lines)


def _file_bytes(path: Path) -> int:
    if path.is_dir():
        return sum(part.stat().st_size for part in path.glob("*.safetensors"))
    return path.stat().st_size


def _child(model: str, **options: int) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", _CHILD, model, json.dumps(options)], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)


def _start_llm(model: str) -> float:
    started = time.perf_counter()
    with _child(model) as child:
        _expect(child, "first")
        return time.perf_counter() - started


def _start_serve(model: str) -> float:
    with ServerProcess(model) as server:
        server.wait_ready()
        server.complete("The capital of France is", 1)
        return time.perf_counter() - server.started


def _peak_llm(model: str) -> int:
    with _child(model, kv_cache_memory_bytes=KV_BYTES) as child, PssWatch(child.pid) as watch:
        _expect(child, "first")
        assert child.stdin is not None
        child.stdin.write(json.dumps([_fillers(), _FILLER_TOKENS]) + "\n")
        child.stdin.flush()
        _expect(child, "filled")
        return watch.peak


def _peak_serve(model: str) -> int:
    with (ServerProcess(model, "--kv-cache-memory-bytes", str(KV_BYTES)) as server,
          PssWatch(server.pid) as watch):
        server.wait_ready()
        threads = [threading.Thread(target=server.complete, args=(prompt, _FILLER_TOKENS))
                   for prompt in _fillers()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return watch.peak


def _expect(child: "subprocess.Popen[str]", word: str) -> None:
    assert child.stdout is not None
    if child.stdout.readline().strip() != word:
        raise RuntimeError(f"the process ended with status {child.wait()} before {word!r}")


def _fillers() -> list[str]:
    from octavo.bench.openai_client import WORDS

    return [" ".join(WORDS[(i * 7 + k * 13) % len(WORDS)] for k in range(_FILLER_WORDS))
            for i in range(_FILLERS)]


class PssWatch:
    """Samples the PSS of a process and its descendants in a thread. peak: bytes."""

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PssWatch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLE_S):
            self.peak = max(self.peak, sum(pss_bytes(pid) for pid in tree_pids(self._pid)))


def pss_bytes(pid: int) -> int:
    """Proportional set size of one process; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
