"""The processor time and memory of a process and its children, as Linux reports them."""

import os
import resource
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")


def family(root: int) -> list[int]:
    """The process and its running descendants, ancestors first; without /proc, the process alone."""
    parents: dict[int, int] = {}
    for entry in _PROC.glob("[0-9]*"):
        if fields := _stat(int(entry.name)):
            parents[int(entry.name)] = int(fields[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_seconds(pids: Iterable[int], *, reaped: bool = False) -> float:
    """The CPU seconds that these have used, in steps of 10 ms; zero without /proc.

    With `reaped`, children that have ended and been waited for count too.
    """
    ticks = 0
    for pid in pids:
        if fields := _stat(pid):
            ticks += sum(int(field) for field in fields[11 : 15 if reaped else 13])
    return ticks / os.sysconf("SC_CLK_TCK")


def pss_bytes(pids: Iterable[int]) -> int:
    """The proportional set size of these: a shared page is divided among the processes that share it."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def compiled(environment: Mapping[str, str]) -> dict[str, str]:
    """The same environment, in which Python finds its modules compiled, as after an installation with pip.

    If a shell or a container forbids writing bytecode, every module that isn't installed is compiled at each start.
    """
    own = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return own | {"PYTHONPYCACHEPREFIX": os.path.join(tempfile.gettempdir(), "palermo-benchmarks-pycache")}


def spent_by_children() -> float:
    """The CPU seconds of all processes that this one has started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _stat(pid: int) -> list[str]:
    """The fields after a process's name; empty if it has ended."""
    try:
        # The name, in parentheses, may contain spaces.
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
