"""Whether other processes took cores while something was measured. Knows no claim, prints nothing.
"""

import os
import time

# a load average counts what waits for a disk, too, and decays over a minute: less says nothing
_LOAD = 1.0
# of a core, on average: more than daemons and a shell need
_TAKEN = 0.2
# CPU seconds of ours: whoever has used more finds own work in the load average
_OWN_CPU_S = 10.0
# /proc/stat: user nice system idle iowait irq softirq steal (guest time is in user already)
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)


class CoreWatch:
    """Cores that others took, of those that this process may use, since this was made.

    has_own_load: this process worked long enough before for a load average to tell of it alone.
    """

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._own_s = own_cpu_seconds()
        self._busy_s = busy_seconds()
        self.has_own_load = self._own_s > _OWN_CPU_S

    def taken_by_others(self) -> float | None:
        """On average, with what a hypervisor kept back; None where the kernel does not tell."""
        busy, seconds = busy_seconds(), time.monotonic() - self._started
        if busy is None or self._busy_s is None or seconds <= 0:
            return None
        # both clocks are coarse, so a little less than nothing may come out
        return max(0.0, busy - self._busy_s - (own_cpu_seconds() - self._own_s)) / seconds


def own_cpu_seconds() -> float:
    """Of all threads of this process, and of its children that have ended."""
    return sum(os.times()[:4])


def busy_seconds() -> float | None:
    """Seconds since the start of the machine in which the cores that this process may use were
    not idle, summed; None where there is no /proc/stat."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            return busy_of(file.read(), os.sched_getaffinity(0)) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return None


def busy_of(stat: str, cores: set[int]) -> int:
    """Ticks not idle of these cores, from the text of /proc/stat."""
    busy = 0
    for line in stat.splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            busy += sum(int(ticks[i]) for i in _BUSY_FIELDS)
    return busy


def disturbance(*, taken: float | None, load: float | None) -> str | None:
    """A sentence that says by what the run was disturbed; None where nothing shows that it was.
    taken: cores that others took; load: the load average before."""
    shown = []
    if load is not None and load > _LOAD:
        shown.append(f"the load average before it was {load:.1f}")
    if taken is not None and taken > _TAKEN:
        shown.append(f"other processes took {taken:.1f} cores on average meanwhile")
    if not shown:
        return None
    return (f"This run was disturbed ({' and '.join(shown)}): its times and rates are not this "
            "machine's; repeat it when nothing else runs.")
