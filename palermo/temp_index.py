"""A temporary index for a view: a private SQLite database, filled from data that is stored elsewhere.

Promise:

* After kill -9, nothing is left. The file has no name, so the system frees its space when the process ends.
* If a `write` block raises, for example because the disk is full, the index is empty immediately, and its owner fills
  it again. Undoing half a block would need a journal, which doubles the amount of data written.
* A `read` block that fails changes nothing.
* Only one thread is in a block at a time, and no thread sees half of a `write` block.
* `close` waits for the running block and frees the space. After that, readers find nothing and writers get
  StoreInvalid.

A block never raises sqlite3.Error: it becomes StoreInvalid, which names the index and says what to do.

Cost: memory for the cache and disk space for the contents, which the owner must limit. SQLite reuses the space of
deleted rows, but only `reset` and `close` return it to the disk.
"""

import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from palermo.core.failure import printable
from palermo.core.text import fits
from palermo.errors import StoreInvalid

#: The type of the connection that owners use.
Database = sqlite3.Connection

#: In bytes.
_PAGE = 8_192


class TempIndex:
    """A temporary database. Its queries may call `fold` and `fits`. Thread-safe."""

    def __init__(self, tables: str, *, name: str, cache_kib: int, opened: Callable[[Database], None]) -> None:
        """Open an empty index. `tables` is the SQL that creates its tables; `name` appears in error messages.

        `opened` is called with each new connection and its empty tables: here, after `reset` and `close`, and after a
        `write` block that raised. It must clear the owner's data about the old rows. Use the connection only within
        `read` and `write`.
        """
        self._tables, self._name, self._cache_kib, self._opened = tables, name, cache_kib, opened
        self._lock = threading.RLock()
        self._closed = False
        with self._own_errors():
            self._db = self._open()

    @contextmanager
    def read(self) -> Iterator[None]:
        """Enter a block of queries, which may contain a `write` block. Raises StoreInvalid."""
        with self._lock, self._own_errors():
            yield

    @contextmanager
    def write(self) -> Iterator[None]:
        """Enter a block of changes, which can't contain another `write` block. Raises StoreInvalid."""
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
        """Delete all rows and start a new file. Raises StoreInvalid."""
        with self._lock, self._own_errors():
            self._empty()

    def close(self) -> None:
        """Delete everything for good. Safe to call again."""
        with self._lock, self._own_errors():
            self._closed = True
            self._empty()

    def file_size(self) -> int:
        """Size of the contents in bytes, without the space of deleted rows."""
        pages = "select page_count - freelist_count from pragma_page_count, pragma_freelist_count"
        with self.read():
            return int(self._db.execute(pages).fetchone()[0]) * _PAGE

    def _empty(self) -> None:
        self._close()
        self._db = self._open()

    def _open(self) -> Database:
        # With an empty name, SQLite creates a file only for this connection when the cache is full, and unlinks it.
        db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        # Not in __del__: the owner (which `opened` references), this object and the connection become garbage together,
        # and Python 3.13 may finalize the connection first and warn that it wasn't closed.
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
                f"{self._name} cannot be used: {error}. It is stored in temporary files. Free some disk space, or set"
                " TMPDIR to another folder."
            ) from error


def fold(text: str | None) -> str:
    """Return the text without case differences, for comparing. Also available in queries."""
    return "" if text is None else printable(text).casefold()
