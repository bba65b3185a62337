"""The Makefile's install: it shows that it lives, and keeps the exit status. pip is a stub."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# stands for pip: ends when a line of elapsed seconds has come, or after 20 s
_STUB = """#!/bin/bash
for i in $(seq 400); do grep -q '^  [0-9]* s$' printed && exit $STATUS; sleep 0.05; done
exit 9
"""


@pytest.mark.parametrize("status", [0, 3])
def test_the_install_lives_and_keeps_its_status(tmp_path: Path, status: int) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "CMakeLists.txt"):
        (tmp_path / name).write_text("")
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (tmp_path / ".venv" / ".created").write_text("")
    (binaries / "python").write_text(_STUB)
    (binaries / "python").chmod(0o755)
    # without the flags of a make that these tests may run under
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHON", "ARGS")}
    with open(tmp_path / "printed", "w") as printed:
        done = subprocess.run(["make", "install", "TICK=0.05"], cwd=tmp_path, stdout=printed,
                              stderr=subprocess.STDOUT, timeout=60,
                              env=environment | {"STATUS": str(status)})
    text = (tmp_path / "printed").read_text()
    assert (done.returncode == 0) == (status == 0), text
    assert (tmp_path / ".venv" / ".installed").exists() == (status == 0)
    assert "a minute on two idle cores" in text and "  0 s\n" in text
    if status:
        assert f"Error {status}" in text
