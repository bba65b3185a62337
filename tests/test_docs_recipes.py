"""The pages that say how to add things, followed to the letter in a copy of the sources."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COPIED = ("octavo", "csrc", "tests", "tools", "benchmarks", "pyproject.toml", "CMakeLists.txt")
TITLED = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
TIMEOUT = 900

pytestmark = pytest.mark.full


def followed(page: str, folder: Path) -> Path:
    """A copy of the sources in which the page's files and patches are applied, in order."""
    unwanted = shutil.ignore_patterns("__pycache__", ".*cache")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=unwanted)
        else:
            shutil.copy(source, folder / name)
    blocks = TITLED.findall((ROOT / "docs" / page).read_text())
    assert {language for language, _, _ in blocks} > {"diff"}
    for language, name, text in blocks:
        if language == "diff":
            assert f"+++ b/{name}\n" in text
            run(["git", "apply", "-"], folder, text)
        else:
            assert not (folder / name).exists(), name
            (folder / name).write_text(text)
    return folder


def run(command: Sequence[str | Path], folder: Path, text: str | None = None) -> None:
    env = {**os.environ, "PYTHONPATH": str(folder), "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(command, cwd=folder, env=env, input=text, capture_output=True, text=True,
                          timeout=TIMEOUT)  # fmt: skip
    assert done.returncode == 0, f"{command}: {(done.stdout + done.stderr)[-4000:]}"


def check(folder: Path, *tests: str) -> None:
    run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], folder)
    run([sys.executable, "-m", "ruff", "check", "--no-cache", "octavo", "tests"], folder)
    for tool in ("tools.check_imports", "tools.check_sizes"):
        run([sys.executable, "-m", tool], folder)


def git_is_there() -> None:
    if shutil.which("git") is None:
        pytest.skip("patches of the guide are applied by git, which is not installed")


def test_add_a_model(tmp_path: Path) -> None:
    git_is_there()
    folder = followed("add-a-model.md", tmp_path / "copy")
    check(folder, "tests/models", "tests/weights")
    run([sys.executable, "-m", "mypy", "octavo"], folder)


def test_add_an_op(tmp_path: Path) -> None:
    git_is_there()
    folder = followed("add-an-op.md", tmp_path / "copy")
    check(folder, "tests/backends/test_clip.py", "tests/backends/test_reference.py", "tests/graph")
    run([sys.executable, "-m", "mypy", "octavo"], folder)


def test_add_a_kernel(tmp_path: Path) -> None:
    git_is_there()
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("the native module is built by cmake, which is not installed")
    pytest.importorskip("nanobind", reason="building in place needs nanobind: pip install nanobind")
    folder = followed("add-a-kernel.md", tmp_path / "copy")
    for old in (folder / "octavo").glob("_native*"):
        old.unlink()
    build = folder / "build"
    run([cmake, "-S", folder, "-B", build, "-DCMAKE_BUILD_TYPE=Release",
         f"-DPython_EXECUTABLE={sys.executable}"], folder)  # fmt: skip
    run([cmake, "--build", build, "--target", "_native", "-j", str(os.cpu_count() or 1)], folder)
    (module,) = build.glob("_native*")
    shutil.copy(module, folder / "octavo" / module.name)
    check(folder, "tests/parity/test_elementwise.py", "tests/parity/test_bit_rules.py")
