"""Who lives: each consumer holds a lock on a file of its own for as long as its process does.

The kernel drops the lock with the process, however it ends, and a process id that is used
again or means another process in another container deceives nobody. Whoever finds a
holder's file unlocked gives back what it held.
"""

import contextlib
import fcntl
import os
import secrets
import sqlite3
import time
import weakref
from collections.abc import Callable

from palermo.brokers.sqlite.messages import release
from palermo.brokers.sqlite.store import Store

_SUFFIX = ".lock"

#: A file without a row is a process that died while it opened or closed; by then it is no longer opening.
_STALE_AFTER = 60.0


class Lock:
    """A locked file with a name that nobody used before."""

    def __init__(self, directory: str) -> None:
        self.name = secrets.token_hex(8) + _SUFFIX
        self._path = os.path.join(directory, self.name)
        self._file: int | None = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.register_at_fork(after_in_child=_forgetting(weakref.ref(self)))

    def drop(self) -> None:
        """Unlock and remove the file. May be called again."""
        if self._file is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        self.forget()

    def forget(self) -> None:
        """Close the file without unlocking it for a parent process that shares it."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _forgetting(lock: "weakref.ref[Lock]") -> Callable[[], None]:
    """A forked child shares the lock, and would keep it after its parent's death."""

    def forget() -> None:
        found = lock()
        if found is not None:
            found.forget()

    return forget


def is_held(directory: str, name: str) -> bool:
    """Whether a living process holds this lock."""
    try:
        file = os.open(os.path.join(directory, name), os.O_RDONLY)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # another user's, most likely: nothing can be said, so nothing is taken away
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


async def bury(store: Store, directory: str, *, but: int = 0) -> int:
    """Forget all holders that are dead, and give back what they held; returns how many jobs that were.

    With that what is held longer than its `lock_for` allows: its holder lives, and stands still.

    `but` is the holder who asks.
    """
    holders = await store.read(lambda db: db.execute("select id, lock from holder where id <> ?", (but,)).fetchall())
    dead = [(number, name) for number, name in holders if not is_held(directory, name)]
    overdue = await store.read(_overdue)
    if not dead and not overdue:
        return 0

    def give_back(db: sqlite3.Connection) -> int:
        return sum(remove(db, number, died=True) for number, _ in dead) + _end_claims(db)

    released = await store.write(give_back)
    for _, name in dead:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, name))
    return released


def remove(db: sqlite3.Connection, holder: int, *, died: bool = False) -> int:
    """Forget a holder and give back what it held; returns how many jobs that were.

    One that `died` is remembered by its jobs.
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


def _end_claims(db: sqlite3.Connection) -> int:
    """Give back what is held for too long; its holder is remembered by it as one that died."""
    now = time.time()
    db.execute(
        "update job set deaths = deaths || (select tag from holder where holder.id = job.holder) || char(10)"
        " where held_until < ?",
        (now,),
    )
    return release(db, "held_until < ?", (now,))


def tidy(directory: str) -> None:
    """Remove files that nobody locks and that are too old to be on their way into the table."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if (
                entry.name.endswith(_SUFFIX)
                and time.time() - entry.stat().st_mtime > _STALE_AFTER
                and not is_held(directory, entry.name)
            ):
                os.unlink(entry.path)
