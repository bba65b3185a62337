"""Schemathesis against a real server: needs the network once, for an environment of its own."""

import json
import subprocess
from pathlib import Path

import pytest

from benchmarks import conformance

pytestmark = pytest.mark.full


def test_own_document(tmp_path: Path) -> None:
    """No server error, every answer as described, four of five valid requests accepted."""
    try:
        program = conformance.schemathesis(tmp_path / "venv")
    except (subprocess.CalledProcessError, OSError) as error:
        pytest.skip(f"schemathesis cannot be installed here: {error}")
    assert program.exists()  # main uses this one
    result = tmp_path / "result.json"
    status = conformance.main(["--venv", str(tmp_path / "venv"), "--max-examples", "10",
                               "--json", str(result)])
    assert status == 0, result.read_text()
    [run] = json.loads(result.read_text())
    counts = run["counts"].values()
    valid = sum(count["valid"] for count in counts)
    assert valid > 1000 and sum(count["accepted"] for count in counts) >= 0.8 * valid
