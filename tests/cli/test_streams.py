"""Standard streams that are closed, full or in an odd encoding, and Ctrl-C while commands load."""

import os
import signal
import subprocess
import sys

import pytest

from octavo.cli.speed import Speed
from octavo.engine.outputs import CompletionOutput, RequestOutput
from tests.server.process import ServerProcess

OCTAVO = [sys.executable, "-m", "octavo.cli.main"]
GENERATE = "generate smollm2-135m Hi --max-tokens 2 --kv-cache-memory-bytes 64m"


def _shell(command: str, *, stdin: bytes = b"", **environment: str
           ) -> subprocess.CompletedProcess[bytes]:
    """Runs `octavo COMMAND` with the shell's redirections."""
    script = command.replace("octavo", '"$0" -m octavo.cli.main', 1)
    return subprocess.run(["/bin/sh", "-c", script, sys.executable], input=stdin,
                          capture_output=True, timeout=60, check=False,
                          env=os.environ | environment)


@pytest.mark.parametrize("command", ["collect-env", GENERATE])
def test_a_full_disk_is_one_line(command: str) -> None:
    done = _shell(f"octavo {command} >/dev/full")
    assert done.returncode == 1
    assert done.stderr == b"octavo: error: No space left on device\n"
    assert _shell(f"octavo {command} >/dev/full 2>&1").returncode == 1


@pytest.mark.parametrize("command", ["collect-env", f"{GENERATE} --quiet"])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_closed_streams(command: str, closed: str) -> None:
    done = _shell(f"octavo {command} {closed}")
    assert (done.returncode, done.stderr) == (0, b"")


def test_closed_stdin_is_the_end_of_input() -> None:
    assert _shell("octavo chat --kv-cache-memory-bytes 64m <&-").returncode == 0
    done = _shell("octavo generate smollm2-135m - --kv-cache-memory-bytes 64m <&-")
    assert done.returncode == 1 and b"prompt is empty" in done.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run([*OCTAVO, "collect-env"], stdout=write_end, stderr=subprocess.PIPE,
                          text=True, timeout=60, check=False)
    os.close(write_end)
    assert done.stderr == ""


def test_an_encoding_that_cannot_say_it() -> None:
    code = ("from octavo.cli.streams import prepare_streams; prepare_streams(); "
            "print('says \\U0001f600')")
    ascii_only = os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60,
                          check=False, env=ascii_only)
    assert (done.stdout, done.stderr) == (b"says ?\n", b"")


def test_input_that_is_no_utf8() -> None:
    done = _shell("octavo generate smollm2-135m - --kv-cache-memory-bytes 64m", stdin=b"a\xff")
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1 and b"not valid UTF-8" in done.stderr
    done = _shell("octavo chat --max-tokens 2 --kv-cache-memory-bytes 64m", stdin=b"a\xff\n")
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_odd_cache_folder() -> None:
    for value in ("~nosuchuser/x", "  "):
        done = _shell("octavo pull smollm2-135m", OCTAVO_CACHE=value)
        assert done.returncode == 1
        assert done.stderr.startswith(b"octavo: error: OCTAVO_CACHE") and not done.stdout
        assert done.stderr.count(b"\n") == 1


def test_ctrl_c_while_a_command_is_imported() -> None:
    # the command's module interrupts itself where a user would
    code = ("import os, signal, sys\n"
            "class Finder:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name == 'octavo.cli.serve': os.kill(os.getpid(), signal.SIGINT)\n"
            "from octavo.cli.main import main\n"
            "sys.meta_path.insert(0, Finder())\n"
            "sys.exit(main(['collect-env']))\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "octavo: interrupted\n")


def test_ctrl_c_in_the_middle_of_an_answer_ends_its_line() -> None:
    command = [sys.executable, "-m", "octavo.cli.main", "generate", "smollm2-135m", "Once",
               "--max-tokens", "2000", "--ignore-eos", "--kv-cache-memory-bytes", "64m"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        said, told = process.communicate(timeout=60)
    assert process.returncode == 130 and said.endswith(b"\n")
    assert told.decode().splitlines()[-1] == "octavo: interrupted"


def test_a_server_without_output_serves() -> None:
    with ServerProcess("smollm2-135m", "--kv-cache-memory-bytes", "64m",
                       "--disable-log-requests", stdout="/dev/full") as server:
        server.wait_listening()
        assert server.client.complete("Hi", max_tokens=1).status == 200
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert server.stderr == (
            "octavo: cannot write to standard output: No space left on device\n"
            "octavo: stopped\n")


def _ended(num_tokens: int, finish_reason: str, stop_reason: str | int | None = None) -> str:
    speed = Speed(max_tokens=8, max_model_len=16)
    part = CompletionOutput(0, "", [1] * num_tokens, finish_reason=finish_reason,
                            stop_reason=stop_reason, seed=1)
    speed.observe(RequestOutput("r", None, [1] * 10, [part], finished=True))
    return speed.line().rpartition("stopped at: ")[2]


def test_why_an_output_ended() -> None:
    assert _ended(3, "stop") == "end of text"
    assert _ended(3, "stop", "x\n") == r"stop text 'x\n'"
    assert _ended(3, "stop", 17) == "stop token 17"
    assert _ended(8, "length") == "max tokens"
    assert _ended(6, "length") == "context full"
    assert _ended(5, "length") == "KV cache full"
    assert _ended(3, "abort") == "abort"
