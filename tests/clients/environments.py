"""Client libraries in virtual environments of their own: their pins clash with each other's.

An environment is made once, in the cache folder, and used again. Nothing of Octavo is in it.
"""

import dataclasses
import fcntl
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.env import cache_dir

SCRIPTS = Path(__file__).parent / "scripts"
_INSTALL_TIMEOUT_S = 600
_RUN_TIMEOUT_S = 300
# what pip says where there is no network, or no mirror that has the package
_NO_NETWORK = ("connection error", "NewConnectionError", "name resolution", "Max retries",
               "Network is unreachable", "ReadTimeoutError", "No matching distribution",
               "ProxyError")


@dataclasses.dataclass(slots=True, frozen=True)
class ClientEnvironment:
    """Some packages from PyPI, pinned."""

    name: str
    requirements: tuple[str, ...]

    @property
    def folder(self) -> Path:
        """Where it is, made or not."""
        key = hashlib.sha256(
            "\n".join([sys.version, *self.requirements]).encode()).hexdigest()[:12]
        return cache_dir() / "test-venvs" / f"{self.name}-{key}"

    def make(self) -> Path:
        """Its folder, made if it is not there. Skips the test where nothing can be fetched."""
        folder = self.folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "complete").exists():
                self._install(folder)
        return folder

    def _install(self, folder: Path) -> None:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True,
                       env=_environment())
        done = subprocess.run(
            [str(folder / "bin" / "python"), "-m", "pip", "install", "-q",
             "--disable-pip-version-check", *self.requirements],
            capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, env=_environment(),
            check=False)
        if done.returncode:
            if any(words in done.stderr for words in _NO_NETWORK):
                pytest.skip(f"{', '.join(self.requirements)} cannot be fetched from PyPI")
            raise AssertionError(f"pip: {done.stderr[-2000:]}")
        (folder / "complete").touch()

    def run(self, *command: str, cwd: Path | None = None,
            environment: dict[str, str] | None = None) -> str:
        """A command of the environment (its first word lies in bin/); returns standard output."""
        folder = self.make()
        done = subprocess.run(
            [str(folder / "bin" / command[0]), *command[1:]], capture_output=True, text=True,
            timeout=_RUN_TIMEOUT_S, cwd=cwd or folder, env=_environment() | (environment or {}),
            check=False)
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def script(self, name: str, *arguments: str) -> Any:
        """Runs scripts/NAME; the JSON of its last line."""
        output = self.run("python", str(SCRIPTS / name), *arguments)
        return json.loads(output.splitlines()[-1])


def _environment() -> dict[str, str]:
    """This process's, without what points into its own Python."""
    own = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "OPENAI_API_KEY", "OPENAI_BASE_URL"}
    return {k: v for k, v in os.environ.items() if k not in own}
