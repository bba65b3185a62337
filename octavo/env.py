"""Every environment variable Octavo reads, at most ten.

Options belong on the command line; these are for tests, or must be known before arguments are.

    OCTAVO_CACHE      folder of downloaded models; default: octavo in the user's cache folder
    OCTAVO_CPU_ISA    generic | avx2 | avx512: forces the native code path; default: the CPU's best
"""

import os
from pathlib import Path

from octavo.errors import ConfigError

CPU_ISAS = ("generic", "avx2", "avx512")


def cache_dir() -> Path:
    """Where downloaded models live."""
    chosen = os.environ.get("OCTAVO_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "octavo"


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
