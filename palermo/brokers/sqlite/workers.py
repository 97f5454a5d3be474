"""Workers in the file and its side directory: their locks and their heartbeats.

Each worker holds a lock on its own file while its process lives. The kernel drops the lock with the process, however it
ends, so reused process ids don't matter. A process that finds another holder's file unlocked releases that holder's
jobs, and counts a death for each. A worker that shuts down cleanly removes its file, which works on a full disk too,
and its jobs are released without a death.
"""

import contextlib
import fcntl
import os
import secrets
import sqlite3
import time
import weakref
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from palermo.brokers.features.consumer import Claim
from palermo.brokers.features.heartbeat import Heartbeat
from palermo.brokers.sqlite.file.store import Store
from palermo.brokers.sqlite.tables.claims import delete, release
from palermo.contract.worker_info import (
    WorkerInfo,
    stored_worker,
    unidentified_worker,
)
from palermo.errors import BrokerUnavailable

_SUFFIX = ".lock"

#: Seconds without a heartbeat after which a worker that still holds its lock counts as silent: stopped or swapped out.
_SILENT_AFTER = 5.0


class WorkerLock:
    """A locked file with a unique name, removed when the process or this object ends.

    A process that is killed before the file has its row leaves an empty file, which is harmless.
    """

    def __init__(self, directory: str) -> None:
        self.name = secrets.token_hex(8) + _SUFFIX
        self._path = os.path.join(directory, self.name)
        self._file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o660)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._end = weakref.finalize(self, _remove_and_close, self._path, self._file)
        os.register_at_fork(after_in_child=_closing_in_child(weakref.ref(self)))

    def release(self) -> None:
        """Unlock and remove the file. Idempotent."""
        self._end()

    def touch(self) -> None:
        """Set the file's modification time to now."""
        with contextlib.suppress(OSError):  # the file was removed, and others release this worker's jobs
            os.utime(self._path)

    def close_file(self) -> None:
        """Close the file without unlocking or removing it. For processes that share it."""
        if self._end.detach() is not None:
            os.close(self._file)


def _remove_and_close(path: str, file: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
    os.close(file)


class CutOff(Struct, frozen=True):
    """A holder whose session was lost while its worker continues. The worker's next session gets its jobs.

    While the lock is held, no other process considers the worker dead. The lost session may have been unable to record
    this, for example on a full disk.
    """

    holder: int
    lock: WorkerLock
    #: Jobs that were done but could not be deleted.
    done: tuple[Claim, ...]


def take_over(db: sqlite3.Connection, cut_off: CutOff, holder: int) -> None:
    """Transfer an earlier holder's jobs to this one. They have no slot until they are delivered again."""
    for claim in cut_off.done:
        delete(db, claim)
    db.execute("update job set holder = ?, slot = null where holder = ?", (holder, cut_off.holder))
    db.execute("delete from holder where id = ?", (cut_off.holder,))


def _closing_in_child(lock: "weakref.ref[WorkerLock]") -> Callable[[], None]:
    """A function that closes the lock's file in a forked child, which would otherwise keep it locked."""

    def close_file() -> None:
        found = lock()
        if found is not None:
            found.close_file()

    return close_file


def _path(directory: str, name: object) -> str:
    """The path of a holder's lock file. For an invalid name, from another program, a path without a file."""
    good = (
        isinstance(name, str) and name.endswith(_SUFFIX) and name.isascii() and name.isprintable() and "/" not in name
    )
    return os.path.join(directory, str(name) if good else f"none{_SUFFIX}")


def is_held(directory: str, name: str) -> bool:
    """Whether a living process holds this lock."""
    try:
        file = os.open(_path(directory, name), os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # Probably another user's file: its owner may live, so it keeps its jobs.
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def from_report(directory: str, holder: int, tag: str, report: str, lock: str) -> WorkerInfo:
    """The worker with this report and this lock."""
    worker = stored_worker(tag, report) or unidentified_worker(holder)
    seen_at = last_seen(directory, lock)
    answers = seen_at is None or time.time() - seen_at < _SILENT_AFTER
    return replace(worker, seen_at=seen_at, answers=answers)


def last_seen(directory: str, lock: str) -> float | None:
    """When the worker with this lock last sent a heartbeat, in Unix seconds; None if it has just ended.

    This is the lock file's modification time.
    """
    try:
        return os.stat(_path(directory, lock)).st_mtime
    except OSError:
        return None


async def reap_dead(store: Store, directory: str, *, except_for: int = 0) -> int:
    """Remove all holders that have ended and release their jobs; return the number of jobs.

    `except_for` is the calling holder.
    """
    holders = await store.read(
        lambda db: db.execute("select id, lock from holder where id <> ?", (except_for,)).fetchall()
    )
    # Check that the file exists after checking its lock, because a worker that shuts down removes the file first.
    ended = [
        (number, name, last_seen(directory, name) is not None)
        for number, name in holders
        if not is_held(directory, name)
    ]
    if not ended:
        return 0
    released = await store.write(lambda db: sum(remove(db, number, died=died) for number, _, died in ended))
    for _, name, _ in ended:
        with contextlib.suppress(OSError):
            os.unlink(_path(directory, name))
    return released


def remove(db: sqlite3.Connection, holder: int, *, died: bool = False) -> int:
    """Remove a holder and release its jobs; return the number of jobs.

    If it `died`, its name is recorded with the jobs.
    """
    if died:
        db.execute(
            "update job set deaths = deaths || (select tag from holder where id = ?) || char(10) where holder = ?",
            (holder, holder),
        )
    released = release(db, "holder = ?", (holder,))
    db.execute("delete from holder where id = ?", (holder,))
    return released


#: Number of our heartbeats without one of another worker after which that worker counts as silent: two seconds.
_SILENT_BEATS = 8


class OverdueClaims:
    """Releases jobs that a living but silent worker has held longer than their `rerun_after` allows.

    A claim ends only if its holder is also silent, because a jump of the wall clock would otherwise end all claims. A
    worker that responds ends its run itself. Silence is counted in this worker's checks, so time in which this worker
    is itself stopped doesn't count.
    """

    def __init__(self, store: Store, directory: str, holder: int) -> None:
        self._store = store
        self._directory = directory
        self._holder = holder
        #: By holder: its last heartbeat, and the number of checks without a newer one.
        self._silence: dict[int, tuple[float | None, int]] = {}

    async def release(self) -> int:
        """Check once, at each heartbeat; return the number of released jobs."""
        rows = await self._store.read(self._overdue)
        silence: dict[int, tuple[float | None, int]] = {}
        for holder, lock in rows:
            seen_at = last_seen(self._directory, lock)
            before, looks = self._silence.get(holder, (seen_at, 0))
            silence[holder] = (seen_at, looks + 1 if seen_at == before else 0)
        self._silence = silence
        silent = [holder for holder, (_, looks) in silence.items() if looks > _SILENT_BEATS]
        if not silent:
            return 0
        return await self._store.write(lambda db: sum(_release_overdue(db, holder) for holder in silent))

    def _overdue(self, db: sqlite3.Connection) -> list[tuple[int, str]]:
        return db.execute(
            "select distinct holder.id, holder.lock from job join holder on holder.id = job.holder"
            " where job.held_until < ? and holder.id <> ?",
            (time.time(), self._holder),
        ).fetchall()


def _release_overdue(db: sqlite3.Connection, holder: int) -> int:
    """Release jobs that this holder has had for too long, and record that with each job in the same way as a death."""
    overdue, values = "holder = ? and held_until < ?", (holder, time.time())
    db.execute(
        "update job set deaths = deaths || (select tag from holder where holder.id = job.holder) || char(10)"
        f" where {overdue}",
        values,
    )
    return release(db, overdue, values)


class SqliteHeartbeat(Heartbeat):
    """Touches one worker's lock, stores its report, and releases the jobs of dead and stopped workers."""

    def __init__(
        self,
        store: Store,
        directory: str,
        holder: int,
        report: Callable[[], WorkerInfo],
        reported: WorkerInfo,
        touch: Callable[[], None],
        notify: Callable[[], None],
    ) -> None:
        """`reported` is the report that the file already has; `notify` wakes the workers for released jobs."""
        super().__init__(report, reported)
        self._store = store
        self._directory = directory
        self._holder = holder
        self._touch = touch
        self._notify = notify
        self._overdue_claims = OverdueClaims(store, directory, holder)
        self._version = store.data_version()

    async def beat(self, report: str) -> bool:
        self._touch()
        if report:
            query, values = "update holder set report = ? where id = ?", (report, self._holder)
            if not await self._store.write(lambda db: db.execute(query, values).rowcount):
                raise BrokerUnavailable(f"{self._store.display_path}: another process considered this worker dead.")
        released = await reap_dead(self._store, self._directory, except_for=self._holder)
        if released + await self._overdue_claims.release():
            self._notify()
        await self._store.renew()
        # A publisher may have died after its commit, before it notified anyone.
        before, self._version = self._version, self._store.data_version()
        return self._version != before
