"""The native self-test (csrc/tests/isa_selftest.cc), on this CPU and on an emulated Arm one.

It compares each ISA's kernels with the generic ones bit for bit. The digests of the generic
results tie the machines together: an Arm server gives the bits an x86 one gives.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.parity.kernels import ISAS

_ROOT = Path(__file__).parents[2]
_CROSS_COMPILER = "aarch64-linux-gnu-g++"
_EMULATOR = "qemu-aarch64-static"
# Of the baseline only, without the dot-product extension.
_OLD_ARM_CPU = "cortex-a53"
_BUILD_TIMEOUT = 900
_RUN_TIMEOUT = 600
_LINE = re.compile(r"(\w+): (.+): (\d+) calls compared, 0 differ, digest ([0-9a-f]{16})")

pytestmark = pytest.mark.full


def build(folder: Path, *options: str) -> Path:
    """Configures and builds the self-test in a folder; the path of the program."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("the native self-test is built by cmake, which is not installed")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    jobs = str(os.cpu_count() or 1)
    for command in ([cmake, "-S", str(_ROOT), "-B", str(folder), *generator,
                     "-DOCTAVO_SELFTEST=ON", *options],
                    [cmake, "--build", str(folder), "--target", "isa_selftest", "-j", jobs]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return folder / "isa_selftest"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=_RUN_TIMEOUT)


def digests(done: subprocess.CompletedProcess[str]) -> dict[tuple[str, str], str]:
    """(table, what) -> digest of a run in which nothing differed."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = [_LINE.fullmatch(line) for line in done.stdout.splitlines()]
    assert found and all(found), done.stdout
    return {(line[1], line[2]): line[4] for line in found if line}


@pytest.fixture(scope="module")
def native_digests(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    if ISAS == ["generic"]:
        pytest.skip("this CPU has the generic code only: nothing to compare")
    program = build(tmp_path_factory.mktemp("native"))
    return digests(run(str(program), *(isa for isa in ISAS if isa != "generic")))


@pytest.fixture(scope="module")
def arm_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for tool in (_CROSS_COMPILER, _EMULATOR):
        if shutil.which(tool) is None:
            pytest.skip(f"emulating an Arm CPU takes {tool}, which is not installed "
                        "(Debian: g++-aarch64-linux-gnu and qemu-user-static)")
    return build(
        tmp_path_factory.mktemp("aarch64"), "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64", f"-DCMAKE_CXX_COMPILER={_CROSS_COMPILER}",
        "-DCMAKE_EXE_LINKER_FLAGS=-static")


def by_part(found: dict[tuple[str, str], str]) -> dict[str, set[str]]:
    """What was compared -> its digests. The avx512bf16 table leaves out a matrix type."""
    parts: dict[str, set[str]] = {}
    for (table, part), digest in found.items():
        if table != "avx512bf16":
            parts.setdefault(part, set()).add(digest)
    return parts


def test_every_isa_of_this_cpu_agrees(native_digests: dict[tuple[str, str], str]) -> None:
    tables = {table for table, _ in native_digests}
    assert tables >= set(ISAS) - {"generic"}
    assert all(len(found) == 1 for found in by_part(native_digests).values())


def test_neon_agrees_and_gives_the_bits_of_this_cpu(
    arm_program: Path, native_digests: dict[tuple[str, str], str]
) -> None:
    found = digests(run(_EMULATOR, "-cpu", "max", str(arm_program), "neon", "neondot"))
    assert {table for table, _ in found} == {"neon", "neondot"}
    for part, digest in by_part(native_digests).items():
        assert by_part(found)[part] == digest


def test_an_arm_cpu_without_dot_products_runs_plain_neon(arm_program: Path) -> None:
    done = run(_EMULATOR, "-cpu", _OLD_ARM_CPU, str(arm_program), "neon")
    assert {table for table, _ in digests(done)} == {"neon"}
    missing = run(_EMULATOR, "-cpu", _OLD_ARM_CPU, str(arm_program), "neondot")
    assert missing.returncode == 1
    assert "neondot: this CPU or build lacks it" in missing.stdout
