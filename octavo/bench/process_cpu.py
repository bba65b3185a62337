"""CPU time of a process and all its descendants, from /proc. Reads only."""

import os
from pathlib import Path

from octavo.errors import ConfigError

_PROC = Path("/proc")


def tree_cpu_s(pid: int) -> float:
    """Seconds of user and system time of `pid` and its living descendants, and of the children
    they have waited for. Raises ConfigError when there is no such process."""
    fields = _stat_fields(pid)
    if fields is None:
        raise ConfigError(f"server_pid is {pid}: there is no such process here",
                          param="server_pid")
    # utime, stime, cutime, cstime: fields 14 to 17 of proc(5), counted from pid = 1
    total = sum(int(value) for value in fields[11:15])
    ticks = os.sysconf("SC_CLK_TCK")
    return total / ticks + sum(_cpu_or_zero(child) for child in _children(pid))


def tree_pids(pid: int) -> list[int]:
    """`pid` and its living descendants."""
    return [pid, *(below for child in _children(pid) for below in tree_pids(child))]


def _cpu_or_zero(pid: int) -> float:
    try:
        return tree_cpu_s(pid)
    except ConfigError:
        return 0.0  # it has ended meanwhile


def _stat_fields(pid: int) -> list[str] | None:
    """Fields behind the command's name, which may hold spaces: the third one first."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in (_PROC / str(pid) / "task").iterdir():
            found += [int(child) for child in (task / "children").read_text().split()]
    except OSError:
        pass
    return found
