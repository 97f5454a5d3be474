"""Jobs and transactions of SQLAlchemy: enqueue after the commit, or in the same transaction through an outbox.

`enqueue_after_commit` needs no table. A transaction that is rolled back enqueues nothing. But a program that dies, or a
broker that is away, between the commit and the enqueuing loses the job: data without the job.

An `Outbox` is a table. The job is a row of the transaction, so data and job are stored both or neither. It is enqueued
right after the commit, or by a recurring job that moves the rows that are left: at least once, and twice, with the same
id, if the program dies between the broker's confirm and the deletion of the row.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

from palermo.client.client import Client
from palermo.client.handle import Job
from palermo.contract.extras import extra
from palermo.contrib.outbox import (
    MIN_AGE,
    CommitSweep,
    Enqueueable,
    JobAfterCommit,
    OutboxJob,
    OutboxRow,
    RowSelection,
    make_row,
    sweep_rows,
    waiting_since,
)
from palermo.errors import UsageError

with extra("sqlalchemy", "palermo.contrib.sqlalchemy"):
    from sqlalchemy import (
        BigInteger,
        Column,
        Double,
        Integer,
        MetaData,
        String,
        Table,
        Text,
        delete,
        event,
        func,
        select,
    )
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, SessionTransaction, registry, scoped_session

#: Every kind of session that the functions take.
AnySession = Session | AsyncSession | scoped_session[Any] | async_scoped_session[Any]

#: The key of Session.info under which the jobs of its transactions wait.
_WAITING = "palermo.contrib.waiting"

#: What a row stores of a job; the database counts the rows.
_STORED = tuple(name for name in OutboxRow.__struct_fields__ if name != "number")


def enqueue_after_commit(session: AnySession, job: Enqueueable, /, *args: Any, **kwargs: Any) -> Job:
    """Enqueue the job once the session's transaction is committed; never, if it, or its savepoint, is rolled back.

    Returns the handle of the job, which has its id already; before the commit its status is "unknown". The arguments
    are checked now, and read after the commit: do not change them in between. After the commit of an AsyncSession the
    event loop waits for the broker.

    Raises ArgumentsInvalid. The commit raises BrokerUnavailable if the broker is away: the data are stored then, and
    the job is not.
    """
    made = JobAfterCommit.of(job, args, kwargs)
    waiting, transaction = _begun(_plain(session))
    waiting.jobs.append(_WaitingJob(transaction, made))
    return made


class _WaitingJob(NamedTuple):
    transaction: SessionTransaction | None
    job: JobAfterCommit[Any]


class _Waiting:
    """The jobs that wait for the commit of one session's transaction."""

    def __init__(self) -> None:
        self.jobs: list[_WaitingJob] = []
        #: The ids of rows by their outbox and database; those of savepoints that were rolled back too.
        self.rows: dict[tuple[Outbox, Engine | Connection], list[str]] = {}
        #: The transaction, or savepoint, that has been committed and is about to end.
        self.committed: SessionTransaction | None = None


def _begun(session: Session) -> tuple[_Waiting, SessionTransaction | None]:
    """The jobs that wait for the session's commit, and its transaction or savepoint, which begins if there is none."""
    if not session.in_transaction():
        session.begin()
    waiting: _Waiting = session.info.setdefault(_WAITING, _Waiting())
    return waiting, session.get_nested_transaction() or session.get_transaction()


@event.listens_for(Session, "after_commit")
def _after_commit(session: Session) -> None:
    waiting: _Waiting | None = session.info.get(_WAITING)
    if waiting is not None:
        waiting.committed = session.get_nested_transaction() or session.get_transaction()


@event.listens_for(Session, "after_transaction_end")
def _after_end(session: Session, ended: SessionTransaction) -> None:
    waiting: _Waiting | None = session.info.get(_WAITING)
    if waiting is None:
        return
    if ended is not waiting.committed:
        waiting.jobs = [one for one in waiting.jobs if one.transaction is not ended]
        if ended.parent is None:
            waiting.rows.clear()
    elif ended.parent is not None:
        # The jobs of a released savepoint are the outer transaction's now.
        outer = ended.parent
        waiting.jobs = [one._replace(transaction=outer) if one.transaction is ended else one for one in waiting.jobs]
    else:
        # Not in after_commit: an error there would leave the session in the middle of its commit.
        del session.info[_WAITING]
        for (outbox, bind), ids in waiting.rows.items():
            outbox.committed(bind, ids)
        for one in waiting.jobs:
            one.job.enqueue()


def _plain(session: AnySession) -> Session:
    """The Session behind any kind of session."""
    found: Any = session
    if isinstance(found, scoped_session | async_scoped_session):
        found = found()
    plain: Session = found.sync_session if isinstance(found, AsyncSession) else found
    return plain


class Outbox:
    """A table of jobs that are stored with the data, and are enqueued after the commit."""

    def __init__(self, metadata: MetaData, *, table: str = "palermo_outbox") -> None:
        """Adds the table to `metadata`: create it as you create your own, by `create_all` or a migration."""
        self.table = Table(
            table,
            metadata,
            # SQLite counts only in a column of this type.
            Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
            Column("id", String(255), nullable=False, index=True),
            Column("job", String(255), nullable=False),
            Column("arguments", Text, nullable=False),
            Column("options", Text, nullable=False),
            Column("created_at", Double, nullable=False),
            # Why the row cannot be enqueued. Such rows stay until somebody mends or deletes them.
            Column("error", Text),
        )
        self._entry = type("OutboxEntry", (), {})
        self._commits = CommitSweep()
        registry(metadata=metadata).map_imperatively(self._entry, self.table)

    def enqueue(self, session: AnySession, job: Enqueueable, /, *args: Any, **kwargs: Any) -> Job:
        """Add the job to the session's transaction; it is enqueued right after the commit, or by a sweep.

        Returns the handle of the job, whose status is "outbox" until then. It is written as JSON now, whatever its
        serializer is later. Raises ArgumentsInvalid, EncodeError.
        """
        row = make_row(job, args, kwargs)
        entry: Any = self._entry()
        for name in _STORED:
            setattr(entry, name, getattr(row, name))
        plain = _plain(session)
        plain.add(entry)
        bind = plain.get_bind(self._entry)
        waiting, _ = _begun(plain)
        waiting.rows.setdefault((self, bind), []).append(row.id)
        return OutboxJob.of(row, job, _FindRow(self.table, bind))

    def committed(self, bind: Engine | Connection, ids: Sequence[str]) -> None:
        """Enqueue the jobs of these rows, whose transaction has just been committed; raises nothing."""
        self._commits.move(partial(self._open_batch, bind), ids)

    def sweep(self, engine: Engine, *, client: Client | None = None, limit: int = 500, min_age: float = MIN_AGE) -> int:
        """Enqueue the jobs of all rows that are older than `min_age` seconds, and delete the rows; returns how many.

        Younger rows are left to the programs that stored them, which enqueue them right after their commit. Rows are
        moved oldest first, at most `limit` in one transaction. Any number of processes may sweep at once, on databases
        that know SKIP LOCKED. A row that can never be enqueued gets its error, is logged and stays. Raises
        BrokerUnavailable, BrokerRefused, PublishRefused; the rows that are left then wait for the next sweep.
        """
        return sweep_rows(partial(self._open_batch, engine), client, limit=limit, min_age=min_age)

    def waiting(self, engine: Engine) -> tuple[int, float]:
        """How many rows wait, and for how many seconds the oldest of them: for alerts."""
        table = self.table
        with engine.connect() as connection:
            chosen = select(func.count(), func.min(table.c.created_at)).where(table.c.error.is_(None))
            count, oldest = connection.execute(chosen).one()
        return count, waiting_since(oldest)

    @contextmanager
    def _open_batch(self, bind: Engine | Connection, selection: RowSelection) -> Iterator["_Batch"]:
        with _connected(bind) as connection:
            batch = _Batch(connection, self.table, selection)
            try:
                yield batch
            finally:
                if connection is not bind:  # else its transaction is the caller's, as in tests
                    connection.commit()


def _connected(bind: Engine | Connection) -> AbstractContextManager[Connection]:
    return bind.connect() if isinstance(bind, Engine) else nullcontext(bind)


class _FindRow:
    """Looks for rows, as the handles of an outbox do."""

    def __init__(self, table: Table, bind: Engine | Connection) -> None:
        self._table = table
        self._bind = bind

    def __call__(self, id: str) -> str | None:
        if self._bind.dialect.is_async:
            raise UsageError("for an outbox in an asyncio engine, use status_async, wait_async and result_async.")
        with _connected(self._bind) as connection:
            return self._look(connection, id)

    async def in_loop(self, id: str) -> str | None:
        bind = self._bind
        if not bind.dialect.is_async:
            return await asyncio.to_thread(self, id)
        if isinstance(bind, Connection):
            return await AsyncConnection(AsyncEngine(bind.engine), bind).run_sync(self._look, id)
        async with AsyncEngine(bind).connect() as connection:
            return await connection.run_sync(self._look, id)

    def _look(self, connection: Connection, id: str) -> str | None:
        found = connection.execute(select(self._table.c.error).where(self._table.c.id == id)).first()
        return None if found is None else found[0] or ""


class _Batch:
    """Rows that a transaction has locked."""

    def __init__(self, connection: Connection, table: Table, selection: RowSelection) -> None:
        self._connection = connection
        self._table = table
        chosen = select(table).where(table.c.error.is_(None)).order_by(table.c.number).limit(selection.limit)
        if selection.until is not None:
            chosen = chosen.where(table.c.created_at <= selection.until)
        if selection.ids is not None:
            chosen = chosen.where(table.c.id.in_(selection.ids))
        found = connection.execute(chosen.with_for_update(skip_locked=True)).mappings()
        self.rows = [OutboxRow(number=row["number"], **{name: row[name] for name in _STORED}) for row in found]

    def run(self, call: Callable[[], object]) -> None:
        if self._connection.dialect.is_async:
            driver: Any = self._connection.connection.dbapi_connection
            driver.run_async(lambda _: asyncio.to_thread(call))
        else:
            call()

    def delete(self, numbers: Sequence[int]) -> None:
        self._connection.execute(delete(self._table).where(self._table.c.number.in_(numbers)))

    def refuse(self, number: int, error: str) -> None:
        self._connection.execute(self._table.update().where(self._table.c.number == number).values(error=error))
