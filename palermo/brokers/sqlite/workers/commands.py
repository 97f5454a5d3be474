"""Commands to workers, through the file: the caller writes a command and polls for answers.

A worker reads new commands at every heartbeat.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Awaitable, Mapping
from typing import Any

from palermo.brokers.sqlite.file.store import Store
from palermo.brokers.sqlite.workers import worker_locks
from palermo.contract.worker_info import CommandReply, OnCommand, WorkerCommand
from palermo.errors import BrokerError

#: Seconds between two polls for answers.
_POLL_EVERY = 0.02

#: Seconds that a worker has for its last answers when it stops.
_ANSWER_TIMEOUT = 1.0


class CommandListener:
    """Reads the commands to one worker, and obeys them."""

    def __init__(
        self, store: Store, exchange: str, holder: int, worker: str, on_command: OnCommand, *, since: int
    ) -> None:
        """It reads the commands after the one with the number `since`."""
        self._holder = holder
        #: Jobs that we hold and that were cancelled after we took them.
        self._cancelled_jobs: set[str] = set()
        self._store = store
        self._exchange = exchange
        self._worker = worker
        self._on_command = on_command
        self._seen = since
        self._answering: set[asyncio.Task[object]] = set()

    async def poll(self) -> None:
        """Begin to obey the commands since the last poll, and to end jobs that were cancelled after we took them."""
        commands, cancelled = await self._store.read(lambda db: (self._find(db), self._cancelled(db)))
        for number, body in commands:
            self._begin(self._answer(number, WorkerCommand.from_plain(json.loads(body))))
        for id, by in cancelled:
            if id not in self._cancelled_jobs:
                self._begin(self._on_command(WorkerCommand(action="cancel", id=id, by=by)))
        self._cancelled_jobs = {id for id, _ in cancelled}

    async def end(self) -> None:
        """Wait for the last answers to be written, then stop."""
        if self._answering:
            await asyncio.wait(set(self._answering), timeout=_ANSWER_TIMEOUT)
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

    async def _answer(self, number: int, command: WorkerCommand) -> None:
        values = await self._on_command(command) if command.is_for(self._worker) else None
        row = (number, self._worker, None if values is None else json.dumps(values), number)
        try:
            await self._store.write(
                # The caller may be gone, and its command deleted.
                lambda db: db.execute(
                    "insert or ignore into answer select ?, ?, ? where exists (select 1 from command where id = ?)", row
                )
            )
        except BrokerError:
            return  # the worker will notice by itself that its session is lost


def last_number(db: sqlite3.Connection) -> int:
    """The number of the last command that was ever written."""
    rows = db.execute("select seq from sqlite_sequence where name = 'command'").fetchall()
    return int(rows[0][0]) if rows else 0


async def send_command(
    store: Store, directory: str, exchange: str, command: WorkerCommand, *, timeout: float
) -> list[CommandReply]:
    """See palermo.contract.broker.Broker.command."""
    deadline = time.monotonic() + timeout

    def write_command(db: sqlite3.Connection) -> int:
        now = time.time()
        db.execute("delete from command where until < ?", (now,))
        cursor = db.execute(
            "insert into command (exchange, body, until) values (?, ?, ?)",
            (exchange, json.dumps(command.to_plain()), now + timeout),
        )
        return cursor.lastrowid or 0

    number = await store.write(write_command)
    try:
        while True:
            answers, waiting = await store.read(lambda db: _answers(db, exchange, number, command))
            if not waiting or time.monotonic() > deadline:
                break
            await asyncio.sleep(_POLL_EVERY)
            await worker_locks.reap_dead(store, directory)
    finally:
        await store.write(lambda db: db.execute("delete from command where id = ?", (number,)))
    return [CommandReply(worker=worker, values=answers[worker]) for worker in sorted(answers)]


def _answers(
    db: sqlite3.Connection, exchange: str, number: int, command: WorkerCommand
) -> tuple[dict[str, Mapping[str, Any]], bool]:
    """The answers so far, and whether more are to come."""
    rows = db.execute("select worker, body from answer where command = ?", (number,)).fetchall()
    alive = {tag for (tag,) in db.execute("select tag from holder where exchange = ?", (exchange,)).fetchall()}
    waiting = {tag for tag in alive if command.is_for(tag)} - {worker for worker, _ in rows}
    return {worker: json.loads(body) for worker, body in rows if body is not None}, bool(waiting)
