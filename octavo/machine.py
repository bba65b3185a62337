"""What this process may use of the machine: cores and memory, cgroups (v1 and v2) included.

Reads /proc and /sys only; decides nothing (config_resolve.py does).
"""

import dataclasses
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
# v1 writes "no limit" as a huge number
_UNLIMITED_BYTES = 1 << 60


@dataclasses.dataclass(slots=True, frozen=True)
class MachineFacts:
    """Attributes:
    num_affinity_cpus: CPUs this process may run on. num_cores: physical cores among them.
    cpu_quota: CPUs' worth of time a cgroup allows, None without a limit.
    available_bytes: memory this process may still take.
    has_native: the native module imports.
    """

    num_affinity_cpus: int
    num_cores: int
    cpu_quota: float | None
    available_bytes: int
    has_native: bool


def machine_facts(*, has_native: bool) -> MachineFacts:
    """The facts now. has_native is the caller's finding: this file imports no backend."""
    cpus = _affinity()
    return MachineFacts(
        num_affinity_cpus=len(cpus), num_cores=_num_cores(cpus), cpu_quota=_cpu_quota(),
        available_bytes=_available_bytes(), has_native=has_native,
    )


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _num_cores(cpus: set[int]) -> int:
    """Physical cores: CPUs with the same sibling list are one."""
    siblings = set()
    for cpu in cpus:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(_read(path) or f"cpu {cpu}")
    return len(siblings)


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _group_dirs(controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup and its ancestors, v2 and v1 hierarchies.

    Inside a container the path in /proc may not exist under the mount; its root then is ours.
    """
    for line in (_read(Path("/proc/self/cgroup")) or "").splitlines():
        _, names, path = line.split(":", 2)
        if names == "":
            root = _CGROUP_ROOT
        elif controller in names.split(","):
            root = _CGROUP_ROOT / controller
            if not root.is_dir():
                root = _CGROUP_ROOT / names
        else:
            continue
        parts = [p for p in path.split("/") if p and p != ".."]
        for depth in range(len(parts), -1, -1):
            group = root.joinpath(*parts[:depth])
            if group.is_dir():
                yield group


def _cpu_quota() -> float | None:
    quotas = []
    for group in _group_dirs("cpu"):
        v2 = (_read(group / "cpu.max") or "").split()
        if len(v2) == 2 and v2[0] != "max":
            quotas.append(int(v2[0]) / int(v2[1]))
        quota, period = _read(group / "cpu.cfs_quota_us"), _read(group / "cpu.cfs_period_us")
        if quota and period and int(quota) > 0 and int(period) > 0:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def _available_bytes() -> int:
    bounds = [_mem_available(), *_address_space()]
    for group in _group_dirs("memory"):
        for limit_name, usage_name in (("memory.max", "memory.current"),
                                       ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            limit, usage = _read(group / limit_name), _read(group / usage_name)
            if limit and usage and limit != "max" and int(limit) < _UNLIMITED_BYTES:
                bounds.append(int(limit) - int(usage) + _reclaimable(group))
    return max(0, min(bounds))


def _address_space() -> Iterator[int]:
    """What `ulimit -v` and `ulimit -d` leave."""
    lines = (_read(Path("/proc/self/status")) or "").splitlines()
    used = {name: int(value.split()[0]) * 1024 for name, _, value in
            (line.partition(":") for line in lines) if name in ("VmSize", "VmData")}
    for kind, name in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            yield limit - used.get(name, 0)


def _reclaimable(group: Path) -> int:
    """Page cache of the group that the kernel drops when memory is asked for."""
    for line in (_read(group / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _mem_available() -> int:
    for line in (_read(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
