"""Jobs and transactions of SQLAlchemy: enqueue after the commit, or in the same transaction through an outbox.

`enqueue_after_commit` needs no table. A transaction that is rolled back enqueues nothing. But a program that dies, or a
broker that is away, between the commit and the enqueuing loses the job: data without the job.

An `Outbox` is a table. The job is a row of the transaction, so data and job are stored both or neither. A recurring job
moves the rows to the broker, at least once: if it dies between the broker's confirm and the deletion of the row, the
job is enqueued twice, with the same id.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Column, Double, Integer, MetaData, String, Table, Text, delete, event, func, select
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction, registry, scoped_session

from palermo.client.client import Client
from palermo.contrib.outbox import Enqueueable, OutboxRow, make_row, sweep_rows, waiting_since

#: Every kind of session that the functions take.
AnySession = Session | AsyncSession | scoped_session[Any] | async_scoped_session[Any]

#: The key of Session.info under which the jobs of its transactions wait.
_WAITING = "palermo.contrib.waiting"

#: What a row stores of a job; the database counts the rows.
_STORED = tuple(name for name in OutboxRow.__struct_fields__ if name != "number")


def enqueue_after_commit(session: AnySession, job: Enqueueable, /, *args: Any, **kwargs: Any) -> None:
    """Enqueue the job once the session's transaction is committed; never, if it, or its savepoint, is rolled back.

    The arguments are checked now, and read after the commit: do not change them in between. After the commit of an
    AsyncSession the event loop waits for the broker.

    Raises ArgumentsInvalid. The commit raises BrokerUnavailable if the broker is away: the data are stored then, and
    the job is not.
    """
    job.definition.bind(args, kwargs)
    plain = _plain(session)
    if not plain.in_transaction():
        plain.begin()
    waiting: _Waiting = plain.info.setdefault(_WAITING, _Waiting())
    transaction = plain.get_nested_transaction() or plain.get_transaction()
    waiting.jobs.append(_WaitingJob(transaction, job, args, kwargs))


class _WaitingJob(NamedTuple):
    transaction: SessionTransaction | None
    job: Enqueueable
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Waiting:
    """The jobs that wait for the commit of one session's transaction."""

    def __init__(self) -> None:
        self.jobs: list[_WaitingJob] = []
        #: The transaction, or savepoint, that has been committed and is about to end.
        self.committed: SessionTransaction | None = None


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
    elif ended.parent is not None:
        # The jobs of a released savepoint are the outer transaction's now.
        outer = ended.parent
        waiting.jobs = [one._replace(transaction=outer) if one.transaction is ended else one for one in waiting.jobs]
    else:
        # Not in after_commit: an error there would leave the session in the middle of its commit.
        del session.info[_WAITING]
        for one in waiting.jobs:
            one.job.enqueue(*one.args, **one.kwargs)


def _plain(session: AnySession) -> Session:
    """The Session behind any kind of session."""
    found: Any = session
    if isinstance(found, scoped_session | async_scoped_session):
        found = found()
    plain: Session = found.sync_session if isinstance(found, AsyncSession) else found
    return plain


class Outbox:
    """A table of jobs that are stored with the data, and are enqueued soon after."""

    def __init__(self, metadata: MetaData, *, table: str = "palermo_outbox") -> None:
        """Adds the table to `metadata`: create it as you create your own, by `create_all` or a migration."""
        self.table = Table(
            table,
            metadata,
            # SQLite counts only in a column of this type.
            Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
            Column("id", String(255), nullable=False),
            Column("job", String(255), nullable=False),
            Column("arguments", Text, nullable=False),
            Column("options", Text, nullable=False),
            Column("created_at", Double, nullable=False),
            # Why the row cannot be enqueued. Such rows stay until somebody mends or deletes them.
            Column("error", Text),
        )
        self._entry = type("OutboxEntry", (), {})
        registry(metadata=metadata).map_imperatively(self._entry, self.table)

    def enqueue(self, session: AnySession, job: Enqueueable, /, *args: Any, **kwargs: Any) -> str:
        """Add the job to the session's transaction; returns the id that it will have.

        It is written as JSON now, whatever its serializer is later. Raises ArgumentsInvalid, EncodeError.
        """
        row = make_row(job, args, kwargs)
        entry: Any = self._entry()
        for name in _STORED:
            setattr(entry, name, getattr(row, name))
        _plain(session).add(entry)
        return row.id

    def sweep(self, engine: Engine, *, client: Client | None = None, limit: int = 500) -> int:
        """Enqueue the jobs of all rows, oldest first, and delete the rows; returns how many.

        Any number of processes may sweep at once, on databases that know SKIP LOCKED. A row that can never be enqueued
        gets its error, is logged and stays. Raises BrokerUnavailable, BrokerRefused, PublishRefused; the rows that are
        left then wait for the next sweep.
        """
        return sweep_rows(partial(self._open_batch, engine), client, limit)

    def waiting(self, engine: Engine) -> tuple[int, float]:
        """How many rows wait, and for how many seconds the oldest of them: for alerts."""
        table = self.table
        with engine.connect() as connection:
            chosen = select(func.count(), func.min(table.c.created_at)).where(table.c.error.is_(None))
            count, oldest = connection.execute(chosen).one()
        return count, waiting_since(oldest)

    @contextmanager
    def _open_batch(self, engine: Engine, limit: int) -> Iterator["_Batch"]:
        with engine.connect() as connection:
            batch = _Batch(connection, self.table, limit)
            try:
                yield batch
            finally:
                connection.commit()


class _Batch:
    """Rows that a transaction has locked."""

    def __init__(self, connection: Connection, table: Table, limit: int) -> None:
        self._connection = connection
        self._table = table
        chosen = select(table).where(table.c.error.is_(None)).order_by(table.c.number).limit(limit)
        found = connection.execute(chosen.with_for_update(skip_locked=True)).mappings()
        self.rows = [OutboxRow(number=row["number"], **{name: row[name] for name in _STORED}) for row in found]

    def delete(self, numbers: Sequence[int]) -> None:
        self._connection.execute(delete(self._table).where(self._table.c.number.in_(numbers)))

    def refuse(self, number: int, error: str) -> None:
        self._connection.execute(self._table.update().where(self._table.c.number == number).values(error=error))
