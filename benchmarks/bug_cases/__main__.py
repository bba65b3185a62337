"""Runs a folder of black-box cases, each against a server set up as it asks, and prints one table.

    python -m benchmarks.bug_cases PATH [--setup NAME ...] [--only B001,...] [--model-dir DIR]

PATH: a folder with run.py (the runner) and bugs.jsonl (the cases; one object a line with id, mode,
needs). --model-dir: the model as safetensors, for the cases in Python that break such a folder;
without it one is made. Exit status 1 if a case failed.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.bug_cases import by_hand
from benchmarks.bug_cases.setups import Setup, setups
from benchmarks.common import ROOT
from benchmarks.server_process import ServerProcess

_SKIPPED_NEEDS = {"lora": "there are no adapters", "spec": "there is no speculative decoding"}
_LINE = re.compile(r"(?m)^(ok|FAIL|INCONCLUSIVE|MANUAL)\s+(B\d+) \[\w+\] (.*)$")


@dataclasses.dataclass(slots=True)
class Results:
    """What became of each case: "" passed, else why it failed."""

    failed: dict[str, str] = dataclasses.field(default_factory=dict)
    by_setup: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)

    def add(self, setup: str, case_id: str, why: str) -> None:
        """One case."""
        self.by_setup.setdefault(setup, []).append(case_id)
        if why:
            self.failed[case_id] = why
            print(f"FAIL {case_id} ({setup}): {why}", flush=True)

    def print_table(self) -> None:
        """A line a set-up, then the totals."""
        print(f"\n{'set-up':16} {'passed':>7} {'failed':>7}")
        total = 0
        for setup, ids in self.by_setup.items():
            failed = sum(i in self.failed for i in ids)
            total += len(ids)
            print(f"{setup:16} {len(ids) - failed:7} {failed:7}")
        print(f"{'all':16} {total - len(self.failed):7} {len(self.failed):7}")
        for case_id, why in self.skipped.items():
            print(f"skipped {case_id}: {why}")


class _Runner:
    def __init__(self, folder: Path, model: str, model_dir: str) -> None:
        self._folder, self._model, self._model_dir = folder, model, model_dir
        self.results = Results()

    def run(self, setup: Setup, cases: list[dict[str, Any]]) -> None:
        """The cases of one server."""
        if not cases:
            return
        previous = os.environ.get("PYTHONPATH", "")
        if setup.python_path is not None:
            os.environ["PYTHONPATH"] = os.pathsep.join([setup.python_path, previous])
        try:
            with ServerProcess(setup.model or self._model, "--served-model-name",
                               setup.served_name, *setup.flags) as server:
                server.wait_ready()
                self._on_server(setup, cases, server.base_url)
        finally:
            os.environ["PYTHONPATH"] = previous

    def _on_server(self, setup: Setup, cases: list[dict[str, Any]], base_url: str) -> None:
        ids = [c["id"] for c in cases if c["id"] not in by_hand.ON_THE_PLAIN_SERVER]
        command = [
            sys.executable, str(self._folder / "run.py"), "--cases",
            str(self._folder / "bugs.jsonl"), "--base-url", base_url, "--model",
            setup.served_name, "--only", ",".join(ids), "--have", ",".join(sorted(setup.have)),
            "--python", "--model-gguf", self._model, "--model-dir", self._model_dir, "-v"]
        if setup.api_key is not None:
            command += ["--api-key", setup.api_key]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        told = {case_id: (kind, text) for kind, case_id, text in _LINE.findall(done.stdout)}
        for case_id in ids:
            kind, text = told.get(case_id, ("FAIL", f"not run: {done.stdout[-200:]}"))
            if kind in ("INCONCLUSIVE", "MANUAL"):
                self.results.skipped[case_id] = text
            else:
                self.results.add(setup.name, case_id, "" if kind == "ok" else text)
        for case in cases:
            check = by_hand.ON_THE_PLAIN_SERVER.get(case["id"])
            if check is not None:
                self.results.add(setup.name, case["id"], check(base_url))


def _assign(case: dict[str, Any], servers: list[Setup]) -> Setup | str | None:
    """The server of a case; else why it is left out; None: it starts its own."""
    needs = set(case.get("needs", []))
    for word, reason in _SKIPPED_NEEDS.items():
        if word in needs:
            return reason
    if case["id"] in by_hand.WITH_OWN_SERVERS:
        return None
    for setup in servers:
        if needs <= setup.have and (setup.ids is None or case["id"] in setup.ids):
            return setup
    return f"no set-up has {', '.join(sorted(needs))}"


def _model_folder(model: str, folder: Path) -> str:
    """The default model as a Hugging Face folder with safetensors."""
    from octavo.weights.model_file import open_model
    from tools.make_variants import write_folder

    with open_model(Path(model)) as opened:
        write_folder(opened, folder)
    return str(folder)


def main() -> int:
    made = common.parser("bug_cases", __doc__)
    made.add_argument("path", type=Path)
    made.add_argument("--setup", action="append", metavar="NAME")
    made.add_argument("--only", default="", metavar="IDS")
    made.add_argument("--model-dir", metavar="DIR")
    args = made.parse_args()
    model = common.model_path(args.model)
    only = {i for i in args.only.split(",") if i}
    with (args.path / "bugs.jsonl").open() as lines:
        cases = [case for case in map(json.loads, lines) if not only or case["id"] in only]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        servers = list(setups(model, folder))
        runner = _Runner(args.path, model, args.model_dir or _model_folder(model, folder / "hf"))
        assigned = {case["id"]: _assign(case, servers) for case in cases}
        for setup in servers:
            if not args.setup or setup.name in args.setup:
                runner.run(setup, [c for c in cases if assigned[c["id"]] is setup])
        for case in cases:
            found = assigned[case["id"]]
            if found is None and (not args.setup or "own" in args.setup):
                why = by_hand.WITH_OWN_SERVERS[case["id"]](model)
                runner.results.add("own", case["id"], why)
            elif isinstance(found, str):
                runner.results.skipped[case["id"]] = found
    runner.results.print_table()
    return 1 if runner.results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
