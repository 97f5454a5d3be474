"""The locks of workers, which show who lives: each worker locks a file of its own for as long as its process lives.

The kernel drops the lock with the process, however it ends. So a process id that is used
again, or means another process in another container, cannot mislead. A process that finds a
holder's file unlocked gives back the holder's jobs.
"""

import contextlib
import fcntl
import os
import secrets
import sqlite3
import time
import weakref
from collections.abc import Callable

from palermo.brokers.sqlite.file.store import Store
from palermo.brokers.sqlite.tables.claims import release

_SUFFIX = ".lock"

#: Seconds after which an unlocked file is removed that has no row: its process died while it opened or closed. After
#: that time no process is still opening.
_STALE_AFTER = 60.0


class WorkerLock:
    """A locked file with a name that was never used before."""

    def __init__(self, directory: str) -> None:
        self.name = secrets.token_hex(8) + _SUFFIX
        self._path = os.path.join(directory, self.name)
        self._file: int | None = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o660)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.register_at_fork(after_in_child=_closing_in_child(weakref.ref(self)))

    def release(self) -> None:
        """Unlock and remove the file. May be called again."""
        if self._file is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        self.close_file()

    def close_file(self) -> None:
        """Close the file without unlocking it for a parent process that shares it."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _closing_in_child(lock: "weakref.ref[WorkerLock]") -> Callable[[], None]:
    """A function that closes the lock in a forked child, which would keep it after its parent's death."""

    def close_file() -> None:
        found = lock()
        if found is not None:
            found.close_file()

    return close_file


def is_held(directory: str, name: str) -> bool:
    """Whether a living process holds this lock."""
    try:
        file = os.open(os.path.join(directory, name), os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # Most likely another user's file: we cannot tell, so its jobs are not taken away.
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


async def reap_dead(store: Store, directory: str, *, except_for: int = 0) -> int:
    """Remove all dead holders and give back their jobs; returns how many jobs.

    It also gives back jobs that are held longer than their `lock_for` allows: their holder lives, but stands still.

    `except_for` is the holder that calls this.
    """
    holders = await store.read(
        lambda db: db.execute("select id, lock from holder where id <> ?", (except_for,)).fetchall()
    )
    dead = [(number, name) for number, name in holders if not is_held(directory, name)]
    overdue = await store.read(_overdue)
    if not dead and not overdue:
        return 0

    def give_back(db: sqlite3.Connection) -> int:
        return sum(remove(db, number, died=True) for number, _ in dead) + _release_overdue(db)

    released = await store.write(give_back)
    for _, name in dead:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, name))
    return released


def remove(db: sqlite3.Connection, holder: int, *, died: bool = False) -> int:
    """Remove a holder and give back its jobs; returns how many jobs.

    If it `died`, its jobs record its name.
    """
    if died:
        db.execute(
            "update job set deaths = deaths || (select tag from holder where id = ?) || char(10) where holder = ?",
            (holder, holder),
        )
    released = release(db, "holder = ?", (holder,))
    db.execute("delete from holder where id = ?", (holder,))
    return released


def _overdue(db: sqlite3.Connection) -> bool:
    return bool(db.execute("select 1 from job where held_until < ? limit 1", (time.time(),)).fetchall())


def _release_overdue(db: sqlite3.Connection) -> int:
    """Give back jobs that are held for too long. Each records its holder as one that died."""
    now = time.time()
    db.execute(
        "update job set deaths = deaths || (select tag from holder where holder.id = job.holder) || char(10)"
        " where held_until < ?",
        (now,),
    )
    return release(db, "held_until < ?", (now,))


def remove_stale_locks(directory: str) -> None:
    """Remove files that no process locks and that are too old to belong to a holder on its way into the table."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if (
                entry.name.endswith(_SUFFIX)
                and time.time() - entry.stat().st_mtime > _STALE_AFTER
                and not is_held(directory, entry.name)
            ):
                os.unlink(entry.path)
