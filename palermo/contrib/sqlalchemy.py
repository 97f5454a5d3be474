"""Enqueuing with SQLAlchemy transactions: after the commit, or in the transaction through an outbox.

`enqueue_after_commit` needs no table, and enqueues nothing if the transaction is rolled back. But the job is lost if
the program dies or the broker is unavailable between the commit and the enqueue.

An `Outbox` is a table. The job is a row in the same transaction as the data, so both are stored or neither. It is
enqueued right after the commit, or by a recurring job that moves remaining rows. Jobs are enqueued at least once: if
the program dies between the broker's confirm and the deletion of the row, the job is enqueued twice with the same id.
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
        UnicodeText,
        bindparam,
        delete,
        event,
        func,
        select,
    )
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, SessionTransaction, registry, scoped_session

#: All kinds of session that are accepted.
AnySession = Session | AsyncSession | scoped_session[Any] | async_scoped_session[Any]

#: The key in Session.info for the jobs of its transactions.
_WAITING = "palermo.contrib.waiting"

#: The columns of a job. The database numbers the rows.
_STORED = tuple(name for name in OutboxRow.__struct_fields__ if name != "number")


def enqueue_after_commit(session: AnySession, job: Enqueueable, /, *args: Any, **kwargs: Any) -> Job:
    """Enqueue the job once the session's transaction is committed. If it or its savepoint is rolled back, nothing is
    enqueued.

    Returns the job's handle, which already has an id; its status is "unknown" before the commit. The arguments are
    checked now but read after the commit, so don't change them in between. The commit of an AsyncSession blocks the
    event loop until the broker has answered.

    Raises ArgumentsInvalid. If the broker is unavailable, the commit raises BrokerUnavailable: the data is stored, but
    the job isn't.
    """
    made = JobAfterCommit.of(job, args, kwargs)
    waiting, transaction = _begun(_plain(session))
    waiting.jobs.append(_WaitingJob(transaction, made))
    return made


class _WaitingJob(NamedTuple):
    transaction: SessionTransaction | None
    job: JobAfterCommit[Any]


class _Waiting:
    """The jobs that wait for the commit of a session's transaction."""

    def __init__(self) -> None:
        self.jobs: list[_WaitingJob] = []
        #: The ids of rows by outbox and database, including those of rolled-back savepoints.
        self.rows: dict[tuple[Outbox, Engine | Connection], list[str]] = {}
        #: The committed transaction or savepoint that is about to end.
        self.committed: SessionTransaction | None = None


def _begun(session: Session) -> tuple[_Waiting, SessionTransaction | None]:
    """Return the jobs waiting for the session's commit, and its transaction or savepoint, started if necessary."""
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
        # The jobs of a released savepoint belong to the outer transaction.
        outer = ended.parent
        waiting.jobs = [one._replace(transaction=outer) if one.transaction is ended else one for one in waiting.jobs]
    else:
        # Not in after_commit, where an error would interrupt the session's commit.
        del session.info[_WAITING]
        for (outbox, bind), ids in waiting.rows.items():
            outbox.committed(bind, ids)
        for one in waiting.jobs:
            one.job.enqueue()


def _plain(session: AnySession) -> Session:
    """Return the Session behind any kind of session."""
    found: Any = session
    if isinstance(found, scoped_session | async_scoped_session):
        found = found()
    plain: Session = found.sync_session if isinstance(found, AsyncSession) else found
    return plain


class Outbox:
    """A table of jobs, which are stored with the data and enqueued after the commit."""

    def __init__(self, metadata: MetaData, *, table: str = "palermo_outbox") -> None:
        """Add the table to `metadata`. Create it like your own, with `create_all` or a migration."""
        # TEXT holds only 64 kB on MySQL, where this length creates a LONGTEXT, and no Unicode on SQL Server.
        text = UnicodeText().with_variant(Text(2**24), "mysql", "mariadb")
        self.table = Table(
            table,
            metadata,
            # SQLite autoincrements only columns of this type.
            Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
            Column("id", String(255), nullable=False, index=True),
            Column("job", String(255), nullable=False),
            Column("arguments", text, nullable=False),
            Column("options", text, nullable=False),
            Column("created_at", Double, nullable=False),
            # Why the row can't be enqueued. Such rows are kept until an operator fixes or deletes them.
            Column("error", text),
        )
        self._entry = type("OutboxEntry", (), {})
        self._commits = CommitSweep()
        registry(metadata=metadata).map_imperatively(self._entry, self.table)

    def enqueue(self, session: AnySession, job: Enqueueable, /, *args: Any, **kwargs: Any) -> Job:
        """Add the job to the session's transaction. It is enqueued right after the commit, or by a sweep.

        Returns the job's handle, whose status is "outbox" until then. The row is JSON, even if the job has another
        serializer. Raises ArgumentsInvalid, EncodeError.
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
        """Enqueue the jobs of these rows after the commit of their transaction. Doesn't raise."""
        self._commits.move(partial(self._open_batch, bind), ids)

    def sweep(self, engine: Engine, *, client: Client | None = None, limit: int = 500, min_age: float = MIN_AGE) -> int:
        """Enqueue the jobs of all rows older than `min_age` seconds, and delete the rows. Returns their number.

        Newer rows are left to the programs that stored them, which enqueue them right after the commit. Rows are moved
        oldest first, at most `limit` per transaction. Several processes may sweep at the same time if the database
        supports SKIP LOCKED. If a row can never be enqueued, its error is stored and logged, and the row is kept.
        Raises BrokerUnavailable, BrokerRefused and PublishRefused; remaining rows wait for the next sweep.
        """
        return sweep_rows(partial(self._open_batch, engine), client, limit=limit, min_age=min_age)

    def waiting(self, engine: Engine) -> tuple[int, float]:
        """Return the number of waiting rows, and the age of the oldest in seconds, for alerts."""
        table = self.table
        with engine.connect() as connection:
            chosen = select(func.count(), func.min(table.c.created_at)).where(table.c.error.is_(None))
            count, oldest = connection.execute(chosen).one()
        return count, waiting_since(oldest)

    @contextmanager
    def _open_batch(self, bind: Engine | Connection, selection: RowSelection) -> Iterator["_Batch"]:
        with _connected(bind) as connection:
            if connection is not bind and connection.dialect.name in ("postgresql", "mysql", "mariadb"):
                # At a higher level, the deletion of enqueued jobs may fail because of other transactions.
                connection.execution_options(isolation_level="READ COMMITTED")
            batch = _Batch(connection, self.table, selection)
            try:
                yield batch
            finally:
                if connection is not bind:  # otherwise the transaction is the caller's, as in tests
                    connection.commit()


def _connected(bind: Engine | Connection) -> AbstractContextManager[Connection]:
    return bind.connect() if isinstance(bind, Engine) else nullcontext(bind)


class _FindRow:
    """Finds rows for the handles of an outbox."""

    def __init__(self, table: Table, bind: Engine | Connection) -> None:
        self._table = table
        self._bind = bind

    def __call__(self, id: str) -> str | None:
        if self._bind.dialect.is_async:
            raise UsageError("this outbox uses an asyncio engine. Call status_async, wait_async or result_async.")
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
    """Rows locked by a transaction."""

    def __init__(self, connection: Connection, table: Table, selection: RowSelection) -> None:
        self._connection = connection
        self._table = table
        chosen = select(table).where(table.c.error.is_(None)).order_by(table.c.number).limit(selection.limit)
        if selection.until is not None:
            chosen = chosen.where(table.c.created_at <= selection.until)
        if selection.ids is not None:
            chosen = chosen.where(table.c.id.in_(selection.ids))
        if selection.without:
            chosen = chosen.where(table.c.job.not_in(selection.without))
        found = connection.execute(chosen.with_for_update(skip_locked=True)).mappings()
        self.rows = [OutboxRow(number=row["number"], **{name: row[name] for name in _STORED}) for row in found]

    def run(self, call: Callable[[], object]) -> None:
        if self._connection.dialect.is_async:
            driver: Any = self._connection.connection.dbapi_connection
            driver.run_async(lambda _: asyncio.to_thread(call))
        else:
            call()

    def delete(self, numbers: Sequence[int]) -> None:
        # One by one, because MySQL may scan the table to delete several, and then waits for another sweep's rows.
        one = delete(self._table).where(self._table.c.number == bindparam("one"))
        if numbers:
            self._connection.execute(one, [{"one": number} for number in numbers])

    def refuse(self, number: int, error: str) -> None:
        self._connection.execute(self._table.update().where(self._table.c.number == number).values(error=error))
