"""The index of a view: a private SQLite database in a temporary file, filled from a truth that is elsewhere.

Promise, in each of these cases:

* kill -9: nothing stays. The file has no name, so the system frees its space when the process ends.
* A full disk, or any other exception in a `write` block: the block raises, and the index is empty at once. A journal
  that could undo half a block would double what is written, so there is none; the owner fills the index again.
* A `read` block that fails changes nothing.
* Several threads: one is in a block at a time, and the others wait. No thread sees half of a `write` block.
* `close`: it waits for the block that runs, and frees the space. From then on readers find nothing, and writers get
  StoreInvalid.

No sqlite3.Error leaves a block: it becomes StoreInvalid, which names the index and says what to do.

Cost: memory for the cache, space on the disk for all that is in it. The owner bounds what it puts in. SQLite gives
the room of deleted rows to new rows, and to the disk only by `reset` or `close`.
"""

import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from palermo.core.failure import printable
from palermo.core.text import fits
from palermo.errors import StoreInvalid

#: The connection to the index, for its owner.
Database = sqlite3.Connection

#: In bytes.
_PAGE = 8_192


class TempIndex:
    """One such database. Its tables may use `fold` and `fits` in queries. Safe to share between threads."""

    def __init__(self, tables: str, *, name: str, cache_kib: int, opened: Callable[[Database], None]) -> None:
        """Open an empty index. `tables` is the SQL that makes its tables, `name` is for messages.

        `opened` gets each new connection with its empty tables: here, after `reset`, after `close`, and after a `write`
        block that raised. It sets back what the owner remembers of the old rows. The owner uses the connection within
        `read` and `write` only.
        """
        self._tables, self._name, self._cache_kib, self._opened = tables, name, cache_kib, opened
        self._lock = threading.RLock()
        self._closed = False
        with self._own_errors():
            self._db = self._open()

    @contextmanager
    def read(self) -> Iterator[None]:
        """A block of queries, which may contain a `write` block. Raises StoreInvalid."""
        with self._lock, self._own_errors():
            yield

    @contextmanager
    def write(self) -> Iterator[None]:
        """A block of changes, which contains no other `write` block. Raises StoreInvalid."""
        with self._lock, self._own_errors():
            if self._closed:
                raise StoreInvalid(f"{self._name} is closed.")
            done = False
            try:
                self._db.execute("begin")
                yield
                self._db.execute("commit")
                done = True
            finally:
                if not done:
                    self._empty()

    def reset(self) -> None:
        """Throw all rows away, and begin with a new file. Raises StoreInvalid."""
        with self._lock, self._own_errors():
            self._empty()

    def close(self) -> None:
        """Throw all away for good. May be called again."""
        with self._lock, self._own_errors():
            self._closed = True
            self._empty()

    def file_size(self) -> int:
        """The size of what is in the file, in bytes. The room of deleted rows does not count."""
        pages = "select page_count - freelist_count from pragma_page_count, pragma_freelist_count"
        with self.read():
            return int(self._db.execute(pages).fetchone()[0]) * _PAGE

    def _empty(self) -> None:
        self._close()
        self._db = self._open()

    def _open(self) -> Database:
        # An empty name: a file of this connection alone. SQLite makes it when the cache is full, and unlinks it.
        db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        # Not in __del__: an owner, whose `opened` we hold, is garbage at once with us and the connection, and Python
        # 3.13 may finalize the connection first, with a warning that nobody closed it.
        self._close = weakref.finalize(self, db.close)
        for pragma in (
            f"page_size = {_PAGE}",
            f"cache_size = -{self._cache_kib}",
            "journal_mode = off",
            "synchronous = off",
            "temp_store = file",
        ):
            db.execute(f"pragma {pragma}").fetchall()
        db.executescript(self._tables)
        db.create_function("fold", 1, fold, deterministic=True)
        db.create_function("fits", 2, fits, deterministic=True)
        self._opened(db)
        return db

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreInvalid(
                f"{self._name} cannot be used: {error}. It is in temporary files: free some space, or set"
                " TMPDIR to another folder."
            ) from error


def fold(text: str | None) -> str:
    """The text as filters compare it, without the difference of upper and lower case; also a function in queries."""
    return "" if text is None else printable(text).casefold()
