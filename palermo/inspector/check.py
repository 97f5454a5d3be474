"""The checks of `palermo check`: whether queues and workers are healthy.

The inspector reads queues and workers, and `compare` compares the rows with the limits. An unknown value, such as the
age of a job in a queue that must not be read, is reported and fails no check.
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
    """The limits to check; None for no limit."""

    #: Maximum number of waiting jobs in one queue.
    max_pending: int | None = None
    #: Maximum age of a queue's first job, in seconds since its creation.
    max_age: float | None = None
    #: Minimum number of workers: of each queue if queues are named, else of all queues together.
    workers: int | None = None
    #: The queues to check, by name or with * and ?; if empty, all but `failed`.
    queues: tuple[str, ...] = ()


class CheckResult(Struct, frozen=True, kw_only=True):
    """The result of a check."""

    problems: tuple[str, ...] = ()
    #: Checks whose values cannot be known.
    unknown: tuple[str, ...] = ()
    #: Rows as in a listing of queues, with `oldest_age` in seconds or None.
    queues: tuple[Row, ...] = ()
    #: The number of workers that answered.
    workers: int = 0
    all_paused: bool = False
    #: A sentence about the workers that do not answer; "" if all do.
    silent: str = ""
    #: A reason why workers cannot answer or this user cannot ask, which is no problem of the workers; "" for none.
    trouble: str = ""
    #: The one worker that the check was about, if there is one.
    worker: str | None = None

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def paused(self) -> tuple[str, ...]:
        """A remark for each paused queue: a pause explains why a queue is long, and isn't a problem."""
        if self.all_paused:
            return ("all queues are paused",)
        return tuple(f"queue {row['name']} is paused" for row in self.queues if row["paused"])

    def line(self) -> str:
        """The whole result in one line."""
        remarks = (*self.unknown, *self.paused, *filter(None, (self.silent, self.trouble)))
        if self.problems:
            return "; ".join((*self.problems, *remarks))
        if self.worker is not None:
            answers = "cannot be checked" if self.trouble else "answers"
            return "; ".join((f"worker {self.worker} {answers}", *remarks))
        pending = sum(row["pending"] for row in self.queues)
        seen = ", ".join(
            (count(len(self.queues), "queue"), f"{count(pending, 'job')} pending", count(self.workers, "worker"))
        )
        return "; ".join((seen, *remarks))

    def row(self) -> Row:
        """The whole result for programs."""
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
    """Read queues and workers, and compare them with the limits. Takes no job."""
    try:
        found = inspector.snapshot()
        trouble = found.trouble or inspector.trouble()
    except BrokerBlocked as error:
        return CheckResult(unknown=("queues and workers cannot be read",), trouble=str(error))
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
    """The result with the broker's trouble, which is a problem if workers can't take jobs because of it."""
    if trouble is None:
        return result
    if trouble.stops_workers:
        return replace(result, problems=(*result.problems, trouble.text))
    return replace(result, trouble=trouble.text)


def compare(
    limits: Limits, rows: Sequence[Row], *, workers: int, ages: Mapping[str, float | None], troubled: bool = False
) -> CheckResult:
    """Find the limits that are exceeded. `ages` has None for a queue whose age cannot be known.

    Workers of a `troubled` broker cannot be counted: they may be unable to answer.
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
    """Whether the worker with this pid on this host runs and answers through the broker."""
    id = f"pid:{pid}@{host or socket.gethostname()}"
    if not _exists(pid):
        return CheckResult(problems=(f"there is no process {pid}",), worker=id)
    return _probed(inspector, id, lambda row: bool(row["id"] == id), f"worker {id} does not answer")


def check_host(inspector: Inspector) -> CheckResult:
    """Whether any worker of this host runs and answers."""
    here = socket.gethostname()
    return _probed(
        inspector, f"of host {here}", lambda row: bool(row["host"] == here), f"no worker of host {here} answers"
    )


def _probed(inspector: Inspector, name: str, wanted: Callable[[Row], bool], problem: str) -> CheckResult:
    """Whether a matching worker answers; `problem` begins the text if none does. Asks for trouble only then."""
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
    """The pid in a worker's pidfile; None if the file doesn't exist, because no worker runs.

    Raises SettingInvalid for a file that cannot be read or isn't a pidfile. The file's lock is not tried: trying it
    would, for an instant, keep a starting worker from getting the lock.
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
    """Seconds for which the first job of a queue has waited; None if it isn't known or the queue cannot be read.

    0 for a queue that was emptied or deleted in the meantime.
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
    with suppress(PermissionError):  # the process exists, and belongs to another user
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
    return True
