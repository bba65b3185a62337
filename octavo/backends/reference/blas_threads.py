"""How many threads NumPy's BLAS uses, where it is the OpenBLAS that NumPy's wheels bring along.

OpenBLAS waits by spinning: with more threads than free cores its small products take ten times as
long. Setting the number is best effort and holds for the whole process.
"""

import ctypes
from pathlib import Path

import numpy as np

_SYMBOLS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


def set_blas_threads(count: int) -> bool:
    """Sets the number of threads. False where BLAS is another one, which is left as it is."""
    root = Path(np.__file__).resolve().parent
    # Next to the package on Linux, inside it on macOS.
    for path in (*root.parent.glob("numpy.libs/*openblas*"), *root.glob(".dylibs/*openblas*")):
        try:
            library = ctypes.CDLL(str(path))  # already loaded by NumPy: the same instance
        except OSError:
            continue
        for symbol in _SYMBOLS:
            if hasattr(library, symbol):
                getattr(library, symbol)(ctypes.c_int(count))
                return True
    return False
