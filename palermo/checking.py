"""Is all well, yes or no: what `palermo check` asks the broker, and how it judges the answers.

`Limits.judge` is a function of what was seen; looking is done by the inspector. What cannot be
known, the age of a job in a queue that may not be read, is said and fails no check.
"""

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from datetime import datetime
from fnmatch import fnmatchcase

from palermo.core.topology import FAILED_QUEUE
from palermo.core.values import dataclass
from palermo.errors import NotBrowsable, NotFound, SettingInvalid
from palermo.inspector import Inspector
from palermo.rows import Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What must hold; None for what does not matter."""

    #: Jobs that may wait in one queue.
    max_pending: int | None = None
    #: Seconds since its creation that the first job of a queue may count.
    max_age: float | None = None
    #: Workers that there must be: for each queue where queues are named, else in all.
    workers: int | None = None
    #: The queues that matter, by name or with * and ?; empty for all but `failed`.
    queues: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check has found."""

    problems: tuple[str, ...] = ()
    #: What was to be checked and cannot be known.
    unknown: tuple[str, ...] = ()
    #: Rows as in a listing of queues, with `oldest_age` in seconds or None.
    queues: tuple[Row, ...] = ()
    #: How many workers answered.
    workers: int = 0
    #: The one worker that was asked about, where one was.
    worker: str | None = None

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def paused(self) -> tuple[str, ...]:
        """A remark for each queue that is paused: why it may be long, and no problem in itself."""
        return tuple(f"queue {row['name']} is paused" for row in self.queues if row["paused"])

    def line(self) -> str:
        """All of it in one line."""
        if self.problems:
            return "; ".join((*self.problems, *self.unknown, *self.paused))
        if self.worker is not None:
            return f"worker {self.worker} answers"
        pending = sum(row["pending"] for row in self.queues)
        seen = ", ".join(
            (_count(len(self.queues), "queue"), f"{_count(pending, 'job')} pending", _count(self.workers, "worker"))
        )
        return "; ".join((seen, *self.unknown, *self.paused))

    def row(self) -> Row:
        """The same for programs."""
        return {
            "ok": self.ok,
            "problems": list(self.problems),
            "unknown": list(self.unknown),
            "queues": list(self.queues),
            "workers": self.workers,
            "worker": self.worker,
        }


@dataclass(slots=True)
class _Judging:
    problems: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def check(inspector: Inspector, limits: Limits, *, now: float | None = None) -> Checked:
    """Look at queues and workers, and judge them. Takes no job."""
    at = time.time() if now is None else now
    rows = [row for row in inspector.queues() if _matters(row["name"], limits.queues)]
    workers = len(inspector.workers())
    ages: dict[str, float | None] = {}
    if limits.max_age is not None:
        ages = {row["name"]: _oldest(inspector, row["name"], at) for row in rows if row["pending"]}
    return judge(limits, rows, workers=workers, ages=ages)


def judge(limits: Limits, rows: Sequence[Row], *, workers: int, ages: Mapping[str, float | None]) -> Checked:
    """What of the limits does not hold. `ages` has None for a queue whose age cannot be known."""
    found = _Judging()
    for pattern in limits.queues:
        if not any(_matters(row["name"], (pattern,)) for row in rows):
            found.problems.append(f"there is no queue {pattern}")
    for row in rows:
        name, pending, age = row["name"], row["pending"], ages.get(row["name"])
        if limits.max_pending is not None and pending > limits.max_pending:
            found.problems.append(f"queue {name}: {_count(pending, 'job')} pending, more than {limits.max_pending}")
        if age is not None and limits.max_age is not None and age > limits.max_age:
            found.problems.append(f"queue {name}: its first job is {age:.0f} s old, more than {limits.max_age:g}")
        if name in ages and age is None:
            found.unknown.append(f"queue {name}: age unknown")
        if limits.workers is not None and limits.queues and row["workers"] < limits.workers:
            found.problems.append(f"queue {name}: {_count(row['workers'], 'worker')}, fewer than {limits.workers}")
    if limits.workers is not None and not limits.queues and workers < limits.workers:
        found.problems.append(f"{_count(workers, 'worker')}, fewer than {limits.workers}")
    return Checked(
        problems=tuple(found.problems),
        unknown=tuple(found.unknown),
        queues=tuple({**row, "oldest_age": ages.get(row["name"])} for row in rows),
        workers=workers,
    )


def check_worker(inspector: Inspector, pid: int, *, host: str | None = None) -> Checked:
    """Whether the worker with this pid on this host lives and answers through the broker."""
    id = f"pid:{pid}@{host or socket.gethostname()}"
    if not _exists(pid):
        return Checked(problems=(f"there is no process {pid}",), worker=id)
    ids = [row["id"] for row in inspector.workers()]
    problems = () if id in ids else (f"worker {id} does not answer through the broker",)
    return Checked(problems=problems, workers=len(ids), worker=id)


def check_host(inspector: Inspector, *, host: str | None = None) -> Checked:
    """Whether any worker of this host lives and answers."""
    here = host or socket.gethostname()
    rows = inspector.workers()
    own = [row["id"] for row in rows if row["host"] == here]
    if not own:
        return Checked(problems=(f"no worker of host {here} answers through the broker",), workers=len(rows))
    return Checked(workers=len(rows), worker=own[0])


def read_pidfile(path: str) -> int | None:
    """The pid in a worker's pidfile; None where there is no such file, as while no worker runs.

    Raises SettingInvalid for a file that is not one. The lock on it is left alone: to try it
    would, for an instant, keep a worker that starts from getting it.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(100).strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingInvalid(f"pidfile {path} cannot be read: {error.strerror}.") from None
    if not text.isdecimal() or int(text) < 1:
        raise SettingInvalid(f"{path} is not a worker's pidfile: it holds {text[:20]!r}.")
    return int(text)


def _matters(name: str, patterns: Sequence[str]) -> bool:
    if not patterns:
        return name != FAILED_QUEUE
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _oldest(inspector: Inspector, queue: str, now: float) -> float | None:
    """Seconds since the first job of a queue was created; None where nobody may look, or its publisher did not say.

    0 for a queue that has been emptied meanwhile.
    """
    try:
        rows = inspector.jobs(queue, limit=1).rows
    except NotBrowsable:
        return None
    except NotFound:
        return 0.0
    if not rows:
        return 0.0
    created = rows[0]["created_at"]
    return None if created is None else max(0.0, now - datetime.fromisoformat(created).timestamp())


def _exists(pid: int) -> bool:
    with suppress(PermissionError):  # it is there, and another user's
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
    return True


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
