"""A read-only memory map of one regular file, and the one-line error every reader here raises.

It knows nothing of any format.
"""

import mmap
import os
import stat
from pathlib import Path

import numpy as np

from octavo.errors import ModelLoadError, ModelNotFoundError

MAX_MESSAGE = 600  # characters: an error stays one readable line even when a file's names are junk


class MappedFile:
    """`path` mapped read-only. Every view is a NumPy array over the map itself, nothing is copied.

    Raises ModelNotFoundError when nothing is there, ModelLoadError when it cannot be mapped.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        descriptor = _open_regular(path)
        try:
            self.size = os.fstat(descriptor).st_size
            if self.size == 0:
                raise load_error(path, "truncated: the file is empty (0 bytes)")
            self.buffer = mmap.mmap(descriptor, self.size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as err:
            raise load_error(path, f"cannot be mapped into memory: {err}") from None
        finally:
            os.close(descriptor)

    def view(self, offset: int, nbytes: int) -> np.ndarray:
        """Read-only uint8 array [nbytes] over the file's bytes. The range must lie in the file."""
        assert offset >= 0 and offset + nbytes <= self.size
        if nbytes == 0:
            return np.empty(0, np.uint8)
        return np.frombuffer(self.buffer, np.uint8, nbytes, offset)

    def release(self, offset: int, nbytes: int) -> None:
        """Drop the range's whole pages from this process's memory; a later read fetches them back.

        Pages that the range shares with its neighbours stay.
        """
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (offset + nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start and hasattr(mmap, "MADV_DONTNEED"):
            self.buffer.madvise(mmap.MADV_DONTNEED, start, end - start)

    def close(self) -> None:
        """Unmap now, or, where views are still alive, when the last of them goes."""
        try:
            self.buffer.close()
        except BufferError:
            pass


def load_error(
    path: Path | str, reason: str, error: type[ModelLoadError] = ModelLoadError
) -> ModelLoadError:
    """An error of one printable line: the path, then the reason."""
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in f"{path}: {reason}")
    if len(line) > MAX_MESSAGE:
        line = line[: MAX_MESSAGE - 3] + "..."
    return error(line)


def _open_regular(path: Path) -> int:
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path}: no such file") from None
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) else err
        raise load_error(path, f"cannot be opened: {reason}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise load_error(path, "not a regular file")
    return descriptor
