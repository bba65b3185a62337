"""AIPerf against a server of its own, one run for each API, and a table of what it measured.

    python3 -m venv /somewhere/aiperf && /somewhere/aiperf/bin/pip install aiperf==0.13.0
    python -m benchmarks.aiperf --aiperf /somewhere/aiperf/bin/aiperf

AIPerf (1.2 GB with what it needs) is no dependency of Octavo. It counts tokens itself, with the
model's tokenizer, which is written to a folder for it. Its prompts are Shakespeare's words.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.server_process import ServerProcess

_ENDPOINTS = ("chat", "completions", "responses", "messages")
_TIMEOUT_S = 600
_COLUMNS = (  # AIPerf's name, title, statistic
    ("request_throughput", "requests/s", "avg"),
    ("output_token_throughput", "tokens/s", "avg"),
    ("time_to_first_token", "TTFT ms p50", "p50"),
    ("time_to_first_token", "p99", "p99"),
    ("inter_token_latency", "ITL ms p50", "p50"),
    ("inter_token_latency", "p99", "p99"),
    ("request_latency", "latency ms p50", "p50"),
)


def export_tokenizer(model: str, folder: Path) -> Path:
    """tokenizer.json and tokenizer_config.json of a GGUF file: what other tools load."""
    from octavo.tokenizer.gguf_tokenizer import build_from_gguf
    from octavo.weights.model_file import open_model
    from tools.make_variants import special_tokens, tokenizer_config

    folder.mkdir(parents=True, exist_ok=True)
    with open_model(Path(model)) as opened:
        build_from_gguf(opened.metadata).save(str(folder / "tokenizer.json"))
        settings = tokenizer_config(opened, special_tokens(opened.metadata))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return folder


def profile(args: Any, endpoint: str, base_url: str, folder: Path) -> dict[str, Any]:
    """One run of AIPerf; its own summary. Raises RuntimeError if it fails, or a request did."""
    served = args.served_name
    out = folder / endpoint
    # with this variable a folder's path counts as the name of a repository
    environment = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "PYTHONPATH")}
    done = subprocess.run(
        [args.aiperf, "profile", "-m", served, "--url", base_url, "--endpoint-type", endpoint,
         "--streaming", "--tokenizer", str(folder / "tokenizer"),
         "--synthetic-input-tokens-mean", str(args.input_tokens),
         "--output-tokens-mean", str(args.output_tokens), "--extra-inputs", "ignore_eos:true",
         "--concurrency", str(args.concurrency), "--request-count", str(args.requests),
         "--random-seed", "1", "--ui", "none", "--artifact-dir", str(out)],
        capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment, check=False)
    found = sorted(out.rglob("profile_export_aiperf.json"))
    if done.returncode or not found:
        raise RuntimeError(f"aiperf: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    summary: dict[str, Any] = json.loads(found[0].read_text())
    count = summary["request_count"]["avg"]
    if count != args.requests or summary.get("error_summary"):
        raise RuntimeError(f"{count} of {args.requests} requests: {summary.get('error_summary')}")
    return summary


def main() -> int:
    made = common.parser("aiperf", __doc__)
    made.add_argument("--aiperf", default="aiperf", metavar="PATH", help="its command")
    made.add_argument("--endpoint", action="append", choices=_ENDPOINTS,
                      help="repeat it for several (default: all)")
    made.add_argument("--input-tokens", type=int, default=128, metavar="N")
    made.add_argument("--output-tokens", type=int, default=64, metavar="N")
    made.add_argument("--concurrency", type=int, default=8, metavar="N")
    made.add_argument("--requests", type=int, default=64, metavar="N")
    args = made.parse_args()
    args.served_name = "served"
    model = common.model_path(args.model)
    load_before = os.getloadavg()[0]
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, ServerProcess(
            model, "--served-model-name", args.served_name, "--num-threads", str(args.threads),
            "--disable-log-requests") as server:
        folder = Path(scratch)
        export_tokenizer(model, folder / "tokenizer")
        server.wait_ready()
        print("".join([f"{'':12}", *(f"{title:>16}" for _, title, _ in _COLUMNS)]))
        for endpoint in args.endpoint or _ENDPOINTS:
            summary = profile(args, endpoint, server.base_url, folder)
            values = [summary.get(name, {}).get(statistic) for name, _, statistic in _COLUMNS]
            print("".join([f"{endpoint:12}", *(
                f"{'-' if value is None else round(value, 2):>16}" for value in values)]),
                flush=True)
            results[endpoint] = summary
    common.write_json(args.json, "aiperf", {"facts": common.facts(load_before), "runs": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
