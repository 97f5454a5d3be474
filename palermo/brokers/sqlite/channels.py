"""Channels, through which the sessions of one file wake each other and exchange messages.

A message is a row that every session listening to its channel reads. It is deleted after a minute.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress

from palermo.brokers.features.journal import BELL
from palermo.brokers.sqlite.file.notifier import Notifier
from palermo.brokers.sqlite.file.store import Store
from palermo.contract.tasks import wait_for_any
from palermo.errors import BrokerError

#: Seconds for which a message is kept.
_KEPT_FOR = 60.0

#: Seconds between two reads without a wake-up, because a session may die before it wakes the others.
_POLL_EVERY = 0.25

#: The watched files: one for jobs, and one for the journal and messages.
_JOBS, _MESSAGES = "bell", "message-bell"
_BELLS = {_JOBS: _JOBS, BELL: "journal-bell", _MESSAGES: _MESSAGES}


class Channels:
    """The channels of one exchange in a file, for one session."""

    def __init__(self, store: Store, exchange: str, directory: str) -> None:
        self._store = store
        self._exchange = exchange
        self._bells = {one: Notifier(directory, store.data_version, name) for one, name in _BELLS.items()}
        #: Wakes the sessions that wait for jobs.
        self.jobs = self._bells[_JOBS]
        self._listeners: list[tuple[str, Callable[..., None]]] = []
        self._rung = asyncio.Event()
        #: The task that reads messages, and the number of the last one read.
        self._reading: asyncio.Task[None] | None = None
        self._after = 0

    def ring(self, channel: str = _JOBS) -> None:
        """Wake the listeners of a channel."""
        self._bell(channel).notify()

    async def listen(self, channel: str, callback: Callable[..., None]) -> None:
        """Call the function for each message of a channel with its text, and whenever something may have changed."""
        bell = self._bell(channel)
        if bell is not self._bells[_MESSAGES]:
            bell.listen(callback)
            return
        newest = await self._store.read(_newest)
        self._listeners.append((channel, callback))
        if self._reading is None:
            self._after = newest
            bell.listen(self._rung.set)
            self._reading = asyncio.ensure_future(self._read())

    async def unlisten(self, channel: str, callback: Callable[..., None]) -> None:
        bell = self._bell(channel)
        if bell is not self._bells[_MESSAGES]:
            bell.unlisten(callback)
            return
        with suppress(ValueError):
            self._listeners.remove((channel, callback))
        if self._reading is not None and not self._listeners:
            self._reading.cancel()
            self._reading = None
            bell.unlisten(self._rung.set)

    def close(self) -> None:
        """Close all notifiers. Idempotent."""
        if self._reading is not None:
            self._reading.cancel()
        for bell in self._bells.values():
            bell.close()

    def _bell(self, channel: str) -> Notifier:
        return self._bells.get(channel) or self._bells[_JOBS if channel.startswith("bell:") else _MESSAGES]

    async def _read(self) -> None:
        while True:
            self._rung.clear()
            with suppress(BrokerError):  # another part of the session reports the loss
                for number, channel, text in await self._store.read(self._new):
                    self._after = number
                    for name, callback in tuple(self._listeners):
                        if name == channel:
                            callback(str(text).encode())
            await wait_for_any(self._rung, timeout=_POLL_EVERY)

    def _new(self, db: sqlite3.Connection) -> list[tuple[int, str, str]]:
        query = "select id, channel, body from message where exchange = ? and id > ? order by id"
        return db.execute(query, (self._exchange, self._after)).fetchall()


def send(db: sqlite3.Connection, exchange: str, channel: str, text: str) -> None:
    """Store a message, unless its text is empty."""
    if text:
        now = time.time()
        db.execute("delete from message where at < ?", (now - _KEPT_FOR,))
        values = (exchange, channel, text, now)
        db.execute("insert into message (exchange, channel, body, at) values (?, ?, ?, ?)", values)


def _newest(db: sqlite3.Connection) -> int:
    rows = db.execute("select seq from sqlite_sequence where name = 'message'").fetchall()
    return int(rows[0][0]) if rows else 0
