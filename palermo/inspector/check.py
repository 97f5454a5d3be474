"""The health checks of `palermo check` for queues and workers.

The inspector reads queues and workers, and `compare` checks the rows against limits. An unknown value, such as the age
of a job in a queue that must not be read, is reported but fails no check.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from palermo.contract.row_types import WorkerRow
from palermo.contract.rows import Row, silent_text, waits_since
from palermo.contract.trouble import Trouble
from palermo.core.text import count
from palermo.core.times import parse_instant
from palermo.core.topology import FAILED_QUEUE
from palermo.errors import BrokerBlocked, NotBrowsable, NotFound, SettingInvalid
from palermo.inspector.inspector import Inspector


class Limits(Struct, frozen=True, kw_only=True):
    """The limits to check. None means no limit."""

    #: Maximum number of waiting jobs in one queue.
    max_pending: int | None = None
    #: Maximum age of a queue's first job in seconds.
    max_age: float | None = None
    #: Minimum number of workers, for each queue in `queues`, or in total if there are none.
    workers: int | None = None
    #: The queues to check, as names or patterns with * and ?; all except `failed` if empty.
    queues: tuple[str, ...] = ()


class CheckResult(Struct, frozen=True, kw_only=True):
    problems: tuple[str, ...] = ()
    #: Checks that couldn't be made because values are unknown.
    unknown: tuple[str, ...] = ()
    #: The queues' rows, with `oldest_age` in seconds or None.
    queues: tuple[Row, ...] = ()
    #: The number of workers that answered.
    workers: int = 0
    all_paused: bool = False
    #: A sentence about workers that don't answer, or "".
    silent: str = ""
    #: Why workers can't answer, or can't be asked by this user; "" if they can. It isn't a problem of the workers.
    trouble: str = ""
    #: The worker that was checked, if it was only one.
    worker: str | None = None

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def paused(self) -> tuple[str, ...]:
        """A remark for each paused queue. A pause isn't a problem, but explains a long queue."""
        if self.all_paused:
            return ("all queues are paused",)
        return tuple(f"queue {row['name']} is paused" for row in self.queues if row["paused"])

    def line(self) -> str:
        remarks = (*self.unknown, *self.paused, *filter(None, (self.silent, self.trouble)))
        if self.problems:
            return "; ".join((*self.problems, *remarks))
        if self.worker is not None:
            answers = "cannot be checked" if self.trouble else "answers"
            return "; ".join((f"worker {self.worker} {answers}", *remarks))
        if self.trouble and not self.queues:
            return "; ".join(remarks)
        pending = sum(row["pending"] for row in self.queues)
        seen = ", ".join(
            (count(len(self.queues), "queue"), f"{count(pending, 'job')} pending", count(self.workers, "worker"))
        )
        return "; ".join((seen, *remarks))

    def row(self) -> Row:
        return {
            "ok": self.ok,
            "problems": list(self.problems),
            "unknown": list(self.unknown),
            "queues": list(self.queues),
            "workers": self.workers,
            "silent": self.silent,
            "trouble": self.trouble,
            "worker": self.worker,
        }


def check(inspector: Inspector, limits: Limits, *, now: float | None = None) -> CheckResult:
    """Read queues and workers, and check them against the limits. Takes no job."""
    try:
        found = inspector.snapshot()
        trouble = found.trouble or inspector.trouble()
    except BrokerBlocked as error:
        unread = ("queues and workers cannot be read",)
        problems = () if limits == Limits() else unread
        return CheckResult(problems=problems, unknown=() if problems else unread, trouble=str(error))
    at = found.at if now is None else now
    rows = [row for row in found.queues if _is_checked(row["name"], limits.queues)]
    workers = len(found.workers) if found.trouble else sum(row["answers"] for row in found.workers)
    ages: dict[str, float | None] = {}
    if limits.max_age is not None:
        ages = {row["name"]: oldest_age(inspector, row["name"], at) for row in rows if row["pending"]}
    result = compare(limits, rows, workers=workers, ages=ages, troubled=found.trouble is not None)
    result = replace(result, all_paused=found.all_paused, silent="" if found.trouble else silent_text(found.workers))
    return _with_trouble(result, trouble)


def _with_trouble(result: CheckResult, trouble: Trouble | None) -> CheckResult:
    """Add the broker's trouble to the result. It is a problem if it prevents workers from taking jobs."""
    if trouble is None:
        return result
    if trouble.stops_workers:
        return replace(result, problems=(*result.problems, trouble.text))
    return replace(result, trouble=trouble.text)


def compare(
    limits: Limits, rows: Sequence[Row], *, workers: int, ages: Mapping[str, float | None], troubled: bool = False
) -> CheckResult:
    """Return the limits that are exceeded. `ages` has None for a queue whose age is unknown.

    If the broker is `troubled`, workers aren't counted, because they may be unable to answer.
    """
    problems = [
        f"queue {pattern} does not exist"
        for pattern in limits.queues
        if not any(_is_checked(row["name"], (pattern,)) for row in rows)
    ]
    unknown = []
    for row in rows:
        name, pending, age = f"queue {row['name']}: ", row["pending"], ages.get(row["name"])
        if limits.max_pending is not None and pending > limits.max_pending:
            problems.append(f"{name}{count(pending, 'job')} pending, more than {limits.max_pending:,}")
        if age is not None and limits.max_age is not None and age > limits.max_age:
            problems.append(f"{name}its first job is {age:.0f} s old, more than {limits.max_age:g}")
        if row["name"] in ages and age is None:
            unknown.append(f"{name}age unknown")
    least = limits.workers or 0
    counted = [(f"queue {row['name']}: ", row["workers"]) for row in rows] if limits.queues else [("", workers)]
    few = [(name, number) for name, number in counted if number < least]
    if troubled:
        unknown += [f"{name}workers cannot be counted" for name, _ in few]
    else:
        problems += [f"{name}{count(number, 'worker')}, fewer than {least}" for name, number in few]
    return CheckResult(
        problems=tuple(problems),
        unknown=tuple(unknown),
        queues=tuple({**row, "oldest_age": ages.get(row["name"])} for row in rows),
        workers=workers,
    )


def check_worker(inspector: Inspector, pid: int, *, host: str | None = None) -> CheckResult:
    """Check that the worker with this pid and host is running and answers."""
    id = f"pid:{pid}@{host or socket.gethostname()}"
    if not _exists(pid):
        return CheckResult(problems=(f"there is no process {pid}",), worker=id)
    return _probed(inspector, id, lambda row: bool(row["id"] == id), f"worker {id} does not answer")


def check_host(inspector: Inspector) -> CheckResult:
    """Check that any worker on this host is running and answers."""
    here = socket.gethostname()
    return _probed(
        inspector, f"of host {here}", lambda row: bool(row["host"] == here), f"no worker of host {here} answers"
    )


def _probed(inspector: Inspector, name: str, wanted: Callable[[Row], bool], problem: str) -> CheckResult:
    """Check that a matching worker answers. `problem` starts the error text. If none answers, also ask the broker about
    trouble.
    """
    answering, found, trouble = list[WorkerRow](), None, None
    try:
        answering = [row for row in inspector.workers.list() if row["answers"]]
        found = next((row["id"] for row in answering if wanted(row)), None)
        trouble = None if found else inspector.trouble()
    except BrokerBlocked as error:
        trouble = Trouble(str(error).rstrip("."), "")
    is_blocked = trouble is not None and not trouble.stops_workers
    problems = () if found or is_blocked else (f"{problem} through the broker",)
    return _with_trouble(CheckResult(problems=problems, workers=len(answering), worker=found or name), trouble)


def read_pidfile(path: str) -> int | None:
    """Return the pid in a worker's pidfile, or None if there is no file because no worker is running.

    Raises SettingInvalid if the file can't be read or isn't a pidfile. Doesn't check the file's lock, because acquiring
    it could prevent a worker from starting at that moment.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(100).strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingInvalid(f"pidfile {path} cannot be read: {error.strerror}.") from None
    if not text.isdecimal() or int(text) < 1:
        raise SettingInvalid(f"{path} is not a worker's pidfile: it contains {text[:20]!r}.")
    return int(text)


def _is_checked(name: str, patterns: Sequence[str]) -> bool:
    if not patterns:
        return name != FAILED_QUEUE
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def oldest_age(inspector: Inspector, queue: str, now: float) -> float | None:
    """Return how long the first job of a queue has waited, in seconds; None if unknown or the queue can't be read.

    Returns 0 if the queue was emptied or deleted in the meantime.
    """
    try:
        rows = inspector.jobs.list(queue, limit=1).rows
    except NotBrowsable:
        return None
    except NotFound:
        return 0.0
    if not rows:
        return 0.0
    since = waits_since(rows[0])
    return None if since is None else max(0.0, now - parse_instant(since))


def _exists(pid: int) -> bool:
    with suppress(PermissionError):  # the process exists and belongs to another user
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
    return True
