"""The limits of jobs and slots, and measuring a process's memory and processor time."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from palermo.core.message import Message
from palermo.core.text import count
from palermo.errors import JobCancelled, JobTerminated, JobTimeout, RerunTimeout, SettingInvalid

#: Seconds between two checks of the memory of running jobs.
MEMORY_EVERY = 1.0


class Limits(Struct, frozen=True, kw_only=True, dict=True):
    """The limits of a worker's jobs and slots. None means no limit. Raises SettingInvalid."""

    #: Maximum seconds per run, for jobs without a timeout of their own.
    timeout: float | None = None
    #: Seconds from JobTimeout in a job until its process is killed.
    timeout_grace: float = 5.0
    #: Number of jobs after which a slot's process is replaced; 1 means a process per job.
    max_jobs: int | None = None
    #: Resident memory in MB (1,000,000 bytes). Above it, running jobs are killed and slots are replaced after their
    #: job.
    max_memory: float | None = None
    #: Seconds after which a slot's process is replaced, between jobs.
    max_lifetime: float | None = None

    def __post_init__(self) -> None:
        for name in ("timeout", "max_jobs", "max_memory", "max_lifetime"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise SettingInvalid(f"{name.replace('_', ' ')} is {value}; it must be a number above 0, or left out.")
        if not 0 <= self.timeout_grace < float("inf"):
            raise SettingInvalid(f"timeout grace is {self.timeout_grace}; it must be a number of seconds, 0 or more.")

    def limited(self, message: Message, timeouts: Mapping[str, float], reruns: Mapping[str, float]) -> Message:
        """Return the message with the limits that apply: its own, those declared by the job, or the worker's, in this
        order.
        """
        timeout, rerun_after = message.timeout, message.rerun_after
        timeout = timeouts.get(message.job, self.timeout) if timeout is None else timeout
        rerun_after = reruns.get(message.job) if rerun_after is None else rerun_after
        if timeout == message.timeout and rerun_after == message.rerun_after:
            return message
        return replace(message, timeout=timeout, rerun_after=rerun_after)

    @cached_property
    def replaces_processes(self) -> bool:
        return not (self.max_jobs is None and self.max_memory is None and self.max_lifetime is None)

    def replace_reason(self, *, jobs: int, age: float, pid: int | None) -> str:
        """Why a slot's process must be replaced, or ""."""
        if self.max_jobs is not None and jobs >= self.max_jobs:
            return f"it has run {count(jobs, 'job')}"
        if self.max_lifetime is not None and age >= self.max_lifetime:
            return f"it is {age:.0f} s old"
        return self.memory_excess(pid)

    def memory_excess(self, pid: int | None, *, times: float = 1) -> str:
        """Describe by how much a process exceeds `times` the memory limit, or return ""."""
        if self.max_memory is None or pid is None:
            return ""
        size = resident(pid) / 1e6
        if size <= self.max_memory * times:
            return ""
        return f"it used {size:.0f} MB of memory; the limit is {self.max_memory:g} MB"


# Errors raised in a job to end it, or with which it ends.


def timed_out(seconds: float) -> JobTimeout:
    """Return the error of a job that exceeded its timeout."""
    return JobTimeout(f"the job ran longer than its timeout of {seconds:g} s")


def cancelled() -> JobCancelled:
    """The error of a cancelled job."""
    return JobCancelled("the job was cancelled; clean up and return")


def terminated() -> JobTerminated:
    """The error of a job that must end because the worker stops."""
    return JobTerminated("the worker is ending and this job will be requeued; clean up and return")


def rerun_timeout(seconds: float) -> RerunTimeout:
    """The error of a run that is killed after its `rerun_after`."""
    return RerunTimeout(
        f"the job's process was killed, because it was still running after its rerun_after of {seconds:g} s"
    )


def resident(pid: int) -> int:
    """Return a process's resident memory in bytes, including shared memory; 0 if it is gone."""
    try:
        if sys.platform == "linux":
            pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return int(_listed(pid, "rss") or "0") * 1024
    except (OSError, ValueError, IndexError):
        return 0


def processor_time(pid: int) -> float:
    """Return a process's processor time in seconds; 0 if it is gone.

    On Linux it includes children that have ended, so that the sum over a worker's processes never falls.
    """
    try:
        if sys.platform == "linux":
            # The program's name, in parentheses, may contain anything.
            numbers = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            return sum(map(int, numbers[11:15])) / os.sysconf("SC_CLK_TCK")
        days, _, clock = _listed(pid, "time").rpartition("-")
        seconds = 0.0
        for part in clock.split(":"):
            seconds = seconds * 60 + float(part)
        return int(days or "0") * 86_400 + seconds
    except (OSError, ValueError, IndexError):
        return 0.0


def _listed(pid: int, what: str) -> str:
    """Return a value that `ps` prints for a process; "" if it is gone."""
    import subprocess

    with suppress(subprocess.TimeoutExpired):
        shown = subprocess.run(["ps", "-o", f"{what}=", "-p", str(pid)], capture_output=True, check=False, timeout=5)
        return shown.stdout.decode().strip()
    return ""
