"""Every environment variable Octavo reads, at most ten.

Options belong on the command line; these are for tests, or must be known before arguments are.

    OCTAVO_CACHE      folder of downloaded models (weights/hub.py); default: in the user's cache
    OCTAVO_CPU_ISA    generic | avx512: forces the native code path; default: the CPU's best
"""

import os

from octavo.errors import ConfigError

CPU_ISAS = ("generic", "avx512")


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
