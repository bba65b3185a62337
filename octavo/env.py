"""Every environment variable Octavo reads, at most ten.

Options belong on the command line; these are for tests, or must be known before arguments are.

    OCTAVO_CACHE      folder of downloaded models; default: octavo in the user's cache folder
    OCTAVO_CPU_ISA    generic | avx2 | avx512 | neon: forces the native code path; default: the
                      CPU's best
"""

import os
from pathlib import Path

from octavo.errors import ConfigError

CPU_ISAS = ("generic", "avx2", "avx512", "neon")


def cache_dir() -> Path:
    """Where downloaded models live: an absolute path. Raises ConfigError."""
    chosen = os.environ.get("OCTAVO_CACHE", "")
    if chosen:
        if not chosen.strip():
            raise ConfigError(
                f"OCTAVO_CACHE is {chosen!r}: give the path of a folder, or unset it",
                param="OCTAVO_CACHE")
        # a relative path is meant from here, wherever the process goes later
        return _expanded(chosen, "OCTAVO_CACHE", chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # its specification says to ignore others
        return Path(base) / "octavo"
    return _expanded("~/.cache/octavo", "HOME", os.environ.get("HOME", ""))


def _expanded(path: str, name: str, value: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{name} is {value!r}: there is no such home folder; set OCTAVO_CACHE to the path of "
            "a folder", param="OCTAVO_CACHE") from None


def cpu_isa() -> str | None:
    """The forced ISA of the native backend, None for its own choice."""
    value = os.environ.get("OCTAVO_CPU_ISA", "")
    if not value:
        return None
    if value not in CPU_ISAS:
        raise ConfigError(
            f"OCTAVO_CPU_ISA is {value!r}: use one of {', '.join(CPU_ISAS)}, or unset it",
            param="OCTAVO_CPU_ISA",
        )
    return value


def child_environment() -> dict[str, str]:
    """For Python processes of ours: they find the same octavo package, installed or not."""
    root = str(Path(__file__).resolve().parent.parent)
    before = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": root if not before else root + os.pathsep + before}
