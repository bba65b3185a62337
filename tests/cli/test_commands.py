"""The commands that end by themselves, as processes where the process matters."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli import flags
from octavo.cli.main import main
from octavo.cli.parser import spelled
from octavo.testing.toy_model import tiny_llama


def _octavo(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "octavo.cli.main", *arguments], input=stdin,
                          capture_output=True, text=True, timeout=60, check=False)


def test_importing_the_command_line_loads_nothing_heavy() -> None:
    code = ("import sys, octavo.cli.main; print(sorted({'numpy', 'tokenizers', 'starlette', "
            "'uvicorn', 'rich', 'msgspec', 'asyncio', 'octavo._native'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, status in ((["--version"], 0), ([], 2), (["nonsense"], 2),
                              (["serve", "--port", "99999"], 2), (["serve", "--help"], 0)):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == status
    assert "octavo 0." in capsys.readouterr().out


@pytest.mark.parametrize(("text", "value"), [
    ("2048", 2048), ("2k", 2000), ("2K", 2048), ("1.5k", 1500), ("1M", 1 << 20),
])
def test_counts(text: str, value: int) -> None:
    assert flags.count(text) == value


@pytest.mark.parametrize(("text", "value"), [
    ("4g", 4 << 30), ("512m", 512 << 20), ("512MiB", 512 << 20), ("1048576", 1 << 20),
    ("0.5G", 1 << 29), ("64MB", 64 << 20),
])
def test_sizes(text: str, value: int) -> None:
    assert flags.size(text) == value


@pytest.mark.parametrize("text", ["", "x", "-1", "4q", "1.3", "4 4g", "ib"])
def test_bad_numbers(text: str) -> None:
    for read in (flags.count, flags.size):
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)


def test_served_names() -> None:
    assert flags.served_names("smollm2-135m", "SmolLM2-135M-Instruct.Q4_1") == (
        "SmolLM2-135M-Instruct", "smollm2-135m", "SmolLM2-135M-Instruct.Q4_1")
    assert flags.served_names("/m/Qwen3-0.6B-Q8_0.gguf", "Qwen3-0.6B-Q8_0") == (
        "Qwen3-0.6B", "Qwen3-0.6B-Q8_0")
    assert flags.served_names("./folder", "folder") == ("folder",)


def test_generate_streams_text_and_tells_the_speed() -> None:
    done = _octavo("generate", "smollm2-135m", "The capital of France is", "--temperature", "0",
                   "--max-tokens", "8", "--kv-cache-memory-bytes", "64m")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "5 prompt tokens, 8 generated" in done.stderr and "tok/s" in done.stderr
    assert "stopped at: max tokens]" in done.stderr
    piped = _octavo("generate", "smollm2-135m", "-", "--temperature", "0", "--max-tokens", "8",
                    "--quiet", "--kv-cache-memory-bytes", "64m", stdin="The capital of France is")
    assert (piped.stdout, piped.stderr) == (done.stdout, "")


def test_chat() -> None:
    said = "\n".join(("What is 2+2?", "/set temperature", "/set top_p 0.25", "/set top_p NONE",
                      "/set top_k many", "/set min_p 7", "/set nothing 1", "/nonsense", "/help",
                      "/retry more", "/retry", "/clear", "/exit", ""))
    done = _octavo("chat", "--temperature", "0", "--max-tokens", "12", "--kv-cache-memory-bytes",
                   "64m", stdin=said)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tok/s") == 2  # the answer, and once more
    for part in ("/system TEXT", "unknown command /nonsense", "no option nothing",
                 "is not a number", "forgotten", "cached", "[temperature 0.0]", "[top_p 0.25]",
                 "[top_p 1.0]", "min_p is 7.0", "/retry takes nothing", "stopped at: "):
        assert part in done.stdout
    assert done.stderr == ""


def test_chat_ends_with_its_input() -> None:
    done = _octavo("chat", "--kv-cache-memory-bytes", "64m")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("advice", "expected"), [
    ("{}", "temperature 0.6, top_p 1.0, top_k 0, min_p 0.05, max_tokens 1024"),
    ('{"temperature": 0.7}', "temperature 0.7, top_p 1.0, top_k 0, min_p 0.0, max_tokens 1024"),
])
def test_chat_samples_as_advised_or_with_care(tmp_path: Path, advice: str, expected: str) -> None:
    folder = tiny_llama().save(tmp_path / "tiny")
    (folder / "generation_config.json").write_text(advice)
    done = _octavo("chat", str(folder), "--kv-cache-memory-bytes", "8m", stdin="/set\n")
    assert done.returncode == 0 and expected in done.stdout.replace("\n", " "), done.stderr


def test_info(capsys: pytest.CaptureFixture[str], model_path: Path) -> None:
    assert main(["info", "smollm2-135m", "--tensors"]) == 0
    out = capsys.readouterr().out
    for part in (str(model_path), "134.5 M", "23,040 bytes a token", "12,240 bytes a token",
                 "Q4_1", "q4+min", "chat template", "layers.29.mlp.down_proj.weight"):
        assert part in out


def test_pull(capsys: pytest.CaptureFixture[str], model_path: Path) -> None:
    assert main(["pull", "smollm2-135m"]) == 0
    assert capsys.readouterr().out.strip() == str(model_path)


@pytest.mark.parametrize("command", [["pull", "nonsense"], ["info", "/nowhere.gguf"],
                                     ["generate", "/nowhere.gguf", "Hi"],
                                     ["chat", "/nowhere.gguf"], ["pull", ""], ["info", " "],
                                     ["chat", "--chat-template", "/nowhere.jinja"],
                                     ["info", "x" * 5000]])
def test_user_errors_are_one_line(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("octavo: error: ") and captured.err.count("\n") == 1
    assert len(captured.err) < 500


@pytest.mark.parametrize(("arguments", "wrong"), [
    (["serve", "--nonsense"], "octavo serve: error: unrecognized arguments: --nonsense"),
    (["serve", "--port", "x"], "octavo serve: error: argument --port"),
    (["serve", "--long-prefill-token-threshold", "-1"], "is not 0 (no own bound)"),
    (["generate", "smollm2-135m"], "PROMPT"),
    (["generate", "m", "Hi", "--chat-template", "x"], "unrecognized arguments: --chat-template"),
    (["generate", "m", "a\udcff\udcfeb"], r"the argument 'a\xff\xfeb' is not valid UTF-8"),
    (["nonsense"], "nonsense"),
])
def test_wrong_usage_is_two_lines(arguments: list[str], wrong: str,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    error, usage = capsys.readouterr().err.splitlines()
    assert wrong in error
    assert usage.startswith("usage: octavo") and usage.endswith(" --help")


@pytest.mark.parametrize(("flags_given", "wrong"), [
    (["--host", ""], "--host is empty"),
    (["--served-model-name", "good", ""], "--served-model-name is ''"),
    (["--allowed-origins", "http://ui.example/"], "--allowed-origins has 'http://ui.example/'"),
    (["--allowed-origins", "ui.example"], "--allowed-origins has 'ui.example'"),
    (["--api-key", "schlüssel"], "--api-key holds"),
    (["--api-key", ""], "--api-key is empty"),
    (["--chat-template", "/"], "is a folder"),
    (["--chat-template", "/dev/null"], "is a device"),
    (["--chat-template", "/nowhere.jinja"], "no such file"),
    (["--max-num-seqs", "0"], "--max-num-seqs is 0"),
    (["--seed", "-3"], "--seed is -3"),
    (["--num-threads", "100000"], "--num-threads is 100000: give at most "),
])
def test_bad_flags_of_serve(flags_given: list[str], wrong: str,
                            capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "smollm2-135m", "--port", "0", *flags_given]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("octavo: error: ") and wrong in captured.err
    assert (captured.out, captured.err.count("\n")) == ("", 1)


def test_names_in_messages_are_spelled_as_flags() -> None:
    args = argparse.Namespace(max_num_seqs=1, max_model_len=2, seed=3, model="m", name="n")
    for message, param, expected in (
        ("max_num_seqs is 0: give 1", "max_num_seqs", "--max-num-seqs is 0: give 1"),
        ("seed is -1: give a seed", "seed", "--seed is -1: give a seed"),
        ("a seed is -1", "seed", "a seed is -1"),
        ("model is bad", "model", "model is bad"),
        ("with max_model_len=2 or num_blocks", None, "with --max-model-len=2 or num_blocks"),
        ("/m/max_num_seqs.gguf: no such file", None, "/m/max_num_seqs.gguf: no such file"),
    ):
        assert spelled(message, args, param) == expected


def test_collect_env(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect-env"]) == 0
    out = capsys.readouterr().out
    for name in ("octavo", "python", "numpy", "cpu", "memory available", "native module"):
        assert any(line.startswith(name) for line in out.splitlines())


def test_native_only_speaks_only_without_the_module(capsys: pytest.CaptureFixture[str],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "octavo._native", None)  # as if it could not be imported
    assert main(["collect-env", "--native-only"]) == 0
    told = capsys.readouterr().out
    assert told.count("\n") == 1 and "NumPy backend" in told
    monkeypatch.undo()
    try:
        import octavo._native  # noqa: F401
    except ImportError:
        return  # an install without a compiler: the line above is what it says
    assert main(["collect-env", "--native-only"]) == 0
    assert capsys.readouterr().out == ""
