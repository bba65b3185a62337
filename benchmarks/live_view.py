"""`python -m benchmarks.live_view`: what the live view costs the server while somebody watches.

The same load through one `octavo serve`, alternately with a listener at /octavo/events and without:
CPU-seconds of server and engine for each output token. The listener and the load generator are
processes of their own and not counted. Reported: the median of the pairs' ratios, with a 95 %
interval from order statistics.
"""

import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, facts, model_path, parser, write_json
from benchmarks.server_process import ServerProcess
from benchmarks.serving import load
from octavo.bench.stats import median_interval

_READ_BYTES = 1 << 20


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    made = parser("live_view", __doc__)
    made.add_argument("--streams", type=int, default=32, metavar="N")
    made.add_argument("--input-len", type=int, default=32, metavar="N")
    made.add_argument("--output-len", type=int, default=128, metavar="N")
    made.add_argument("--listeners", type=int, default=1, metavar="N")
    made.add_argument("--pairs", type=int, default=20, metavar="N")
    args = made.parse_args(argv)
    before = os.getloadavg()[0]
    model = model_path(args.model)
    runs: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    with ServerProcess(model, "--num-threads", str(args.threads)) as server:
        server.wait_ready()
        for pair in range(-1, args.pairs):  # the first one warms up
            for is_open in (False, True) if pair % 2 else (True, False):
                with listening(server.base_url, args.listeners if is_open else 0):
                    found = load(server, streams=args.streams, input_len=args.input_len,
                                 output_len=args.output_len, seed=2 * pair + is_open + 2)
                if pair >= 0:
                    runs[is_open].append(found)
    summary = summarize(runs[True], runs[False])
    print(text(summary, args.streams))
    write_json(args.json, "live_view", {
        "facts": facts(before), "model": Path(model).name, "streams": args.streams,
        "input_len": args.input_len, "output_len": args.output_len, "listeners": args.listeners,
        **summary, "open": runs[True], "closed": runs[False]})
    return 0


@contextlib.contextmanager
def listening(base_url: str, count: int) -> Iterator[None]:
    """So many listeners, which read and forget, each a process."""
    listeners = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.live_view", "listen", base_url],
                         cwd=ROOT, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for listener in listeners:
            assert listener.stdout is not None
            if listener.stdout.readline() != b"open\n":
                raise RuntimeError("the live view could not be opened")
        yield
        for listener in listeners:
            if listener.poll() is not None:
                raise RuntimeError("the live view ended early")
    finally:
        for listener in listeners:
            listener.kill()
            listener.wait()


def listen(base_url: str) -> None:
    """Reads events until it is ended."""
    import urllib.request

    with urllib.request.urlopen(f"{base_url}/octavo/events", timeout=60) as stream:
        stream.readline()
        print("open", flush=True)
        while stream.read1(_READ_BYTES):
            pass


def summarize(opened: list[dict[str, float]], closed: list[dict[str, float]]) -> dict[str, Any]:
    """The pairs' ratios of CPU-seconds a token, their median and its interval."""
    per_token = [[run["cpu_s"] / run["tokens"] for run in runs] for runs in (opened, closed)]
    ratios = [with_view / without for with_view, without in zip(*per_token)]
    return {
        "pairs": len(ratios), "ratio": statistics.median(ratios),
        "interval": median_interval(ratios), "ratios": ratios,
        "open_cpu_ms_per_token": 1000 * statistics.median(per_token[0]),
        "closed_cpu_ms_per_token": 1000 * statistics.median(per_token[1]),
        "open_tokens_per_s": statistics.median(r["tokens"] / r["seconds"] for r in opened),
        "closed_tokens_per_s": statistics.median(r["tokens"] / r["seconds"] for r in closed),
    }


def text(found: dict[str, Any], streams: int) -> str:
    """For people."""
    low, high = found["interval"]
    return (f"| {streams} streams | CPU-ms a token | tokens/s |\n|---|---:|---:|\n"
            f"| live view open | {found['open_cpu_ms_per_token']:.3f} | "
            f"{found['open_tokens_per_s']:.0f} |\n"
            f"| closed | {found['closed_cpu_ms_per_token']:.3f} | "
            f"{found['closed_tokens_per_s']:.0f} |\n\n"
            f"open against closed, CPU a token, median of {found['pairs']} pairs: "
            f"{100 * (found['ratio'] - 1):+.2f} % (95 %: {100 * (low - 1):+.2f} to "
            f"{100 * (high - 1):+.2f} %)\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["listen"]:
        listen(sys.argv[2])
        sys.exit(0)
    sys.exit(main())
