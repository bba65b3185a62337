"""`python -m benchmarks.all --out DIR --models DIR`: every measurement of docs/PERFORMANCE.md.

One part after the other, each a process of its own that writes DIR/PART.json; a part whose file is
there already is not run again. About 40 minutes on two quiet cores; `--quick` takes a few and only
shows that everything runs.
"""

import argparse
import dataclasses
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common import ROOT

# storage types of the files in --models, SmolLM2-135M-Instruct.TYPE.gguf (tools/make_variants.py),
# and the bfloat16 folder
_PREFIX = "SmolLM2-135M-Instruct"
_TYPES = ("Q4_1", "Q4_0", "Q4_K", "Q6_K", "Q8_0", "BF16", "F16")
_FOLDER = f"{_PREFIX}-bf16"
_MAIN, _OTHER_BATCHED = ("Q4_1", "Q4_0"), ("Q8_0", "BF16", "F16")


@dataclasses.dataclass(slots=True, frozen=True)
class Part:
    """One command. arguments: behind `python -m`; the result file is put behind them."""

    name: str
    arguments: tuple[str, ...]


def parts(models: Path, out: Path, venvs: tuple[str, ...], *, quick: bool,
          with_vllm: bool) -> list[Part]:
    """In the order they run: short ones first."""
    def files(types: tuple[str, ...], folder: bool = False) -> tuple[str, ...]:
        paths = [models / f"{_PREFIX}.{name}.gguf" for name in types]
        paths += [models / _FOLDER] if folder else []
        return tuple(word for path in paths if path.exists() for word in ("--model", str(path)))

    def compare(name: str, tests: str, of: tuple[str, ...], *more: str) -> Part:
        return Part(name, ("benchmarks.compare", *venvs, *of, "--tests", tests, "-r",
                           "1" if quick else "3", *more, "--out"))

    first = files(_MAIN[:1])
    count = ("-r", "1" if quick else "5")
    found = [
        Part("machine", ("octavo.cli.main", "bench", "machine", "--json")),
        Part("startup_memory", ("benchmarks.startup_memory", *first, *count, "--json")),
        Part("shared_prefix", ("benchmarks.shared_prefix", *first, *count, "--json")),
        Part("serving", ("benchmarks.serving", *first, *count, *(["--quick"] if quick else []),
                         "--json")),
        compare("single", "smoke" if quick else "decode1,prefill512", files(_TYPES, folder=True)),
        compare("batch", "batch-small" if quick else "batch-some", files(_MAIN)),
        # 64 prompts of 512 tokens are minutes for llama.cpp: it runs its fastest file only
        compare("batch_large", "smoke" if quick else "batch-large", files(_MAIN),
                "--peers", "openvino-genai"),
        compare("batch_large_q4_0", "smoke" if quick else "batch-large", files(_MAIN[1:]),
                "--peers", "llama-cpp-python"),
        compare("batch_types", "batch-small" if quick else "batch-some",
                files(_OTHER_BATCHED, folder=True)),
        Part("growth", ("benchmarks.growth", *venvs, *files(_MAIN), "--peers",
                        "llama-cpp-python", "-r", "1" if quick else "2", "--plot",
                        str(out / "growth.svg"), *(["--short"] if quick else []), "--json")),
        Part("robustness", ("benchmarks.robustness", *first, "--json")),
    ]
    if with_vllm:
        found.append(compare("vllm", "smoke" if quick else "once", files((), folder=True),
                             "--peers", "vllm"))
    return found


def main(argv: list[str] | None = None) -> int:
    """Entry point; 1 when a part failed."""
    made = argparse.ArgumentParser(prog="python -m benchmarks.all", description=__doc__)
    made.add_argument("--out", type=Path, required=True, metavar="DIR")
    made.add_argument("--models", type=Path, required=True, metavar="DIR",
                      help="folder that tools/make_variants.py filled")
    made.add_argument("--venv", action="append", default=[], metavar="PEER=DIR",
                      help="see benchmarks/compare/README.md")
    made.add_argument("--quick", action="store_true")
    made.add_argument("--with-vllm", action="store_true", help="four minutes more")
    made.add_argument("--only", metavar="PART,PART,...")
    made.add_argument("--report", type=Path, metavar="FILE.md", help="write the tables there")
    args = made.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    venvs = tuple(word for item in args.venv for word in ("--venv", item))
    status = 0
    for part in parts(args.models, args.out, venvs, quick=args.quick, with_vllm=args.with_vllm):
        if args.only is None or part.name in args.only.split(","):
            status |= _run(part, args.out)
    if args.report is not None:
        from benchmarks.report_performance import main as report

        status |= report(["--results", str(args.out), "--out", str(args.report)])
    return status


def _run(part: Part, out: Path) -> int:
    target = out / f"{part.name}.json"
    if target.exists():
        print(f"{part.name}: there already", flush=True)
        return 0
    started = time.monotonic()
    print(f"{part.name}: ", end="", flush=True)
    # the result appears only when the part is complete
    part_file = out / f"{part.name}.running.json"
    with (out / f"{part.name}.log").open("w") as log:
        done = subprocess.run([sys.executable, "-m", *part.arguments, str(part_file)], cwd=ROOT,
                              stdout=log, stderr=subprocess.STDOUT, check=False)
    if part_file.exists():  # also of a part whose status says that a goal is missed
        for suffix in (".svg", ".png"):
            if part_file.with_suffix(suffix).exists():
                part_file.with_suffix(suffix).replace(target.with_suffix(suffix))
        part_file.replace(target)
    print(f"status {done.returncode}, {time.monotonic() - started:.0f} s", flush=True)
    return int(done.returncode != 0 or not target.exists())


if __name__ == "__main__":
    sys.exit(main())
