"""`python -m tools.api_table RECORD`: docs/COMPATIBILITY.md from a recorded run of the tests.

RECORD is what `tests/api_record.py` wrote. A field counts as taken where a test sent it and was
answered with 2xx, as refused where an answer of 4xx names it; both are often true of one field.
"""

import argparse
import dataclasses
import json
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from octavo.server.openapi.operations import OPERATIONS, Operation

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "COMPATIBILITY.md"
COMMAND = ("python -m pytest -p tests.api_record --record-api api.jsonl tests/server tests/clients "
           "--ignore tests/server/test_fuzz.py --ignore tests/server/test_soak.py "
           "--ignore tests/server/openapi/test_schemathesis.py")
# What clients call themselves, as first words of User-Agent. The tests' own client says nothing.
_CLIENTS = (("openai/", "openai"), ("asyncopenai/", "openai"), ("anthropic/", "anthropic"),
            ("asyncanthropic/", "anthropic"), ("ollama-python/", "ollama"),
            ("litellm/", "litellm"), ("python-requests/", "requests"), ("python/", "aiohttp"),
            ("curl/", "curl"))
_MAX_SHOWN_DEPTH = 3


@dataclasses.dataclass(slots=True)
class Use:
    """What became of one field of one route, or of the route itself."""

    taken: set[str] = dataclasses.field(default_factory=set)  # names of tests
    refused: set[str] = dataclasses.field(default_factory=set)
    clients: set[str] = dataclasses.field(default_factory=set)


Uses = dict[tuple[str, str, str], Use]  # by method, path of the operation, field ("": the route)


def uses(lines: Iterable[str]) -> Uses:
    """What a record says."""
    entries = [json.loads(line) for line in lines]
    tests = sorted((e["from"], e["until"], e["test"].partition("[")[0])
                   for e in entries if "test" in e)
    starts = [start for start, _, _ in tests]
    paths = [(operation, _pattern(operation.path)) for operation in OPERATIONS]
    found: Uses = {}
    for entry in entries:
        at = bisect_right(starts, entry.get("at", 0.0)) - 1
        if "test" in entry or at < 0:
            continue
        operation = next((o for o, pattern in paths if o.method == entry["method"]
                          and pattern.fullmatch(entry["path"])), None)
        if operation is not None:
            _note(found, operation, entry, tests[at][2])
    return found


def _pattern(path: str) -> re.Pattern[str]:
    # the name of a model may hold slashes
    return re.compile(re.sub(r"\\\{model_id\\\}", ".+", re.sub(
        r"\\\{(?!model_id)\w+\\\}", "[^/]+", re.escape(path))))


def _note(found: Uses, operation: Operation, entry: dict[str, Any], test: str) -> None:
    agent = entry["agent"].lower()
    client = next((name for start, name in _CLIENTS if agent.startswith(start)), None)
    is_taken = entry["status"] < 300
    blamed = re.sub(r"\[\d+\]", "[]", entry["param"] or "")
    for name in ("", *entry["names"]):
        is_blamed = (not name and entry["status"] >= 400) or (
            name and (blamed == name or blamed.startswith((f"{name}.", f"{name}["))))
        if not is_taken and not is_blamed:
            continue
        use = found.setdefault((operation.method, operation.path, name), Use())
        (use.taken if is_taken else use.refused).add(test)
        if is_taken and client:
            use.clients.add(client)


def document(found: Uses) -> str:
    """The page."""
    parts = [
        "# API compatibility", "",
        ("Made by `python -m tools.api_table RECORD` from what the tests sent and how it was "
        "answered; the record comes from"), "", f"    {COMMAND}", "",
        ("The numbers count tests: *taken* those in which a request with the field was answered "
        "with success, *refused* those in which"),
        ("an error names the field. Most fields have both: sound values are taken, others refused. "
        "*Clients* are the libraries that sent the field"),
        ("over a real socket. Fields that no route knows are ignored with a line in the log, "
        "or refused under `--strict-params`."), ""]
    described: dict[type, Operation] = {}
    for tag in dict.fromkeys(operation.tag for operation in OPERATIONS):
        operations = [operation for operation in OPERATIONS if operation.tag == tag]
        parts += [f"## {tag}", "", "| route | what it does | taken | refused | clients |",
                  "|---|---|---:|---:|---|"]
        for operation in operations:
            use = found.get((operation.method, operation.path, ""), Use())
            parts.append(f"| `{operation.method} {operation.path}` | {operation.summary} | "
                         f"{_counts(use)} |")
        parts.append("")
        for operation in operations:
            if operation.request is None:
                continue
            first = described.setdefault(operation.request, operation)
            parts += _fields(operation, found) if first is operation else [
                (f"`{operation.method} {operation.path}` takes the body of `{first.method} "
                f"{first.path}`; what only drawing tokens needs is passed over."), ""]
    return "\n".join(parts).rstrip() + "\n"


def _fields(operation: Operation, found: Uses) -> list[str]:
    assert operation.request is not None
    parts = [f"### {operation.method} {operation.path}", "",
             "| field | taken | refused | clients |", "|---|---:|---:|---|"]
    for field in operation.request.__struct_fields__:
        names = sorted(name for method, path, name in found
                       if (method, path) == (operation.method, operation.path)
                       and re.split(r"[.\[=]", name)[0] == field
                       and name.count(".") < _MAX_SHOWN_DEPTH)
        for name in names or [field]:
            use = found.get((operation.method, operation.path, name), Use())
            parts.append(f"| `{name}` | {_counts(use)} |")
    return [*parts, ""]


def _counts(use: Use) -> str:
    return (f"{len(use.taken) or '-'} | {len(use.refused) or '-'} | "
            f"{', '.join(sorted(use.clients)) or '-'}")


def untested(found: Uses) -> list[str]:
    """Fields that no test sent, of each kind of body once."""
    first = {operation.request: operation for operation in reversed(OPERATIONS)
             if operation.request is not None}
    return [f"{operation.method} {operation.path}: {field}"
            for operation in first.values() if operation.request is not None
            for field in operation.request.__struct_fields__
            if (operation.method, operation.path, field) not in found]


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    made = argparse.ArgumentParser(prog="python -m tools.api_table", description=__doc__)
    made.add_argument("record", type=Path)
    made.add_argument("--out", type=Path, default=TARGET, metavar="FILE")
    args = made.parse_args(argv)
    found = uses(args.record.read_text().splitlines())
    args.out.write_text(document(found))
    print(f"written: {args.out}")
    for line in untested(found):
        print(f"no test sends {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
