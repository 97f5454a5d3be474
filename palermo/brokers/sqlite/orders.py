"""Orders to workers, through the file: who gives one writes it and looks for answers, who obeys looks at every tick."""

import asyncio
import json
import sqlite3
import time
from collections.abc import Awaitable, Mapping
from typing import Any

from palermo.brokers.sqlite import holders
from palermo.brokers.sqlite.store import Store
from palermo.crew import Answer, Obey, Order
from palermo.errors import BrokerError

#: Seconds between two looks for answers.
_LOOK_EVERY = 0.02

#: Seconds that a worker which leaves gives its last answers.
_LAST_WORDS = 1.0


class Listener:
    """One worker's ear for orders."""

    def __init__(self, store: Store, exchange: str, holder: int, worker: str, obey: Obey, *, since: int) -> None:
        """It hears what is given after the order of the number `since`."""
        self._holder = holder
        #: Jobs that we hold and that someone cancelled since we took them.
        self._told: set[str] = set()
        self._store = store
        self._exchange = exchange
        self._worker = worker
        self._obey = obey
        self._seen = since
        self._answering: set[asyncio.Task[object]] = set()

    async def look(self) -> None:
        """Begin to obey what was ordered since the last look, and to end what was cancelled since we took it."""
        orders, cancelled = await self._store.read(lambda db: (self._find(db), self._cancelled(db)))
        for number, body in orders:
            self._begin(self._answer(number, Order.from_plain(json.loads(body))))
        for id, by in cancelled:
            if id not in self._told:
                self._begin(self._obey(Order(action="cancel", id=id, by=by)))
        self._told = {id for id, _ in cancelled}

    async def end(self) -> None:
        """Give the last answers."""
        if self._answering:
            await asyncio.wait(set(self._answering), timeout=_LAST_WORDS)
        for task in self._answering:
            task.cancel()

    def _begin(self, work: Awaitable[object]) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(work)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    def _cancelled(self, db: sqlite3.Connection) -> list[tuple[str, str]]:
        return db.execute(
            "select message_id, by from cancel where exchange = ?"
            " and message_id in (select message_id from job where holder = ?)",
            (self._exchange, self._holder),
        ).fetchall()

    def _find(self, db: sqlite3.Connection) -> list[tuple[int, str]]:
        rows = db.execute(
            "select id, body from command where exchange = ? and id > ? and until > ? order by id",
            (self._exchange, self._seen, time.time()),
        ).fetchall()
        self._seen = max([self._seen, *(number for number, _ in rows)])
        return rows

    async def _answer(self, number: int, order: Order) -> None:
        values = await self._obey(order) if order.meant_for(self._worker) else None
        row = (number, self._worker, None if values is None else json.dumps(values), number)
        try:
            await self._store.write(
                # Its giver may have gone, and the order with it.
                lambda db: db.execute(
                    "insert or ignore into answer select ?, ?, ? where exists (select 1 from command where id = ?)", row
                )
            )
        except BrokerError:
            return  # the worker will notice what has become of its session


def last(db: sqlite3.Connection) -> int:
    """The number of the last order that was ever given."""
    rows = db.execute("select seq from sqlite_sequence where name = 'command'").fetchall()
    return int(rows[0][0]) if rows else 0


async def command(store: Store, directory: str, exchange: str, order: Order, *, timeout: float) -> list[Answer]:
    """Broker.command."""
    deadline = time.monotonic() + timeout

    def give(db: sqlite3.Connection) -> int:
        now = time.time()
        db.execute("delete from command where until < ?", (now,))
        cursor = db.execute(
            "insert into command (exchange, body, until) values (?, ?, ?)",
            (exchange, json.dumps(order.to_plain()), now + timeout),
        )
        return cursor.lastrowid or 0

    number = await store.write(give)
    try:
        while True:
            answers, waiting = await store.read(lambda db: _look(db, exchange, number, order))
            if not waiting or time.monotonic() > deadline:
                break
            await asyncio.sleep(_LOOK_EVERY)
            await holders.bury(store, directory)
    finally:
        await store.write(lambda db: db.execute("delete from command where id = ?", (number,)))
    return [Answer(worker=worker, values=answers[worker]) for worker in sorted(answers)]


def _look(
    db: sqlite3.Connection, exchange: str, number: int, order: Order
) -> tuple[dict[str, Mapping[str, Any]], bool]:
    """What was answered so far, and whether there is more to wait for."""
    rows = db.execute("select worker, body from answer where command = ?", (number,)).fetchall()
    alive = {tag for (tag,) in db.execute("select tag from holder where exchange = ?", (exchange,)).fetchall()}
    waiting = {tag for tag in alive if order.meant_for(tag)} - {worker for worker, _ in rows}
    return {worker: json.loads(body) for worker, body in rows if body is not None}, bool(waiting)
