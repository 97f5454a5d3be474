"""Jobs and transactions of SQLAlchemy: enqueue after the commit, or in the same transaction through an outbox.

`enqueue_after_commit` needs no table. A transaction that is rolled back enqueues nothing. But a program that dies, or a
broker that is away, between the commit and the enqueuing loses the job: data without the job.

An `Outbox` is a table. The job is a row of the transaction, so data and job are stored both or neither. A recurring job
moves the rows to the broker, at least once: if it dies between the broker's confirm and the deletion of the row, the
job is enqueued twice, with the same id.
"""

import logging
import time
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from sqlalchemy import BigInteger, Column, Double, Integer, MetaData, String, Table, Text, delete, event, func, select
from sqlalchemy.engine import Connection, Engine, RowMapping
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction, registry, scoped_session

from palermo.client.client import Client, default_client
from palermo.client.prepare import new_id
from palermo.core.times import due_at
from palermo.errors import BrokerError, DuplicateJob
from palermo.jobs.definition import JobDefinition
from palermo.jobs.job_registry import registry as jobs

log = logging.getLogger("palermo.outbox")

#: Every kind of session that the functions take.
AnySession = Session | AsyncSession | scoped_session[Any] | async_scoped_session[Any]

#: The key of Session.info under which the jobs of its transactions wait.
_WAITING = "palermo.contrib.waiting"


class Enqueueable(Protocol):
    """A job, or a job with options: `send`, `send.options(queue="slow")`."""

    @property
    def definition(self) -> JobDefinition:
        """The job's definition."""

    @property
    def enqueue(self) -> Any:
        """Enqueues one, with the job's own arguments."""


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
        definition, options = job.definition, dict(getattr(job, "given", {}))
        definition.bind(args, kwargs)
        id = options.pop("id", None) or new_id()
        now = time.time()
        # A delay counts from now, and not from when the row is moved.
        run_at = due_at(
            now, delay=options.pop("delay", None), run_at=options.pop("run_at", None), declared=definition.delay
        )
        if run_at is not None:
            options["run_at"] = run_at
        json = default_client().serializers.get("json")
        entry: Any = self._entry()
        entry.id, entry.job, entry.created_at = id, definition.name, now
        entry.arguments = json.dumps({"args": list(args), "kwargs": kwargs}).decode()
        entry.options = json.dumps({name: value for name, value in options.items() if value is not None}).decode()
        _plain(session).add(entry)
        return id

    def sweep(self, engine: Engine, *, client: Client | None = None, limit: int = 500) -> int:
        """Enqueue the jobs of all rows, oldest first, and delete the rows; returns how many.

        Any number of processes may sweep at once, on databases that know SKIP LOCKED. A row that can never be enqueued
        gets its error, is logged and stays. Raises BrokerUnavailable, BrokerRefused, PublishRefused; the rows that are
        left then wait for the next sweep.
        """
        total = 0
        while True:
            with engine.connect() as connection:
                moved, found = self._sweep_once(connection, client or default_client(), limit)
            total += moved
            if found < limit:
                return total

    def waiting(self, engine: Engine) -> tuple[int, float]:
        """How many rows wait, and for how many seconds the oldest of them: for alerts."""
        table = self.table
        with engine.connect() as connection:
            chosen = select(func.count(), func.min(table.c.created_at)).where(table.c.error.is_(None))
            count, oldest = connection.execute(chosen).one()
        return count, 0.0 if oldest is None else max(0.0, time.time() - oldest)

    def _sweep_once(self, connection: Connection, client: Client, limit: int) -> tuple[int, int]:
        """How many rows were moved, and how many were found."""
        table = self.table
        chosen = select(table).where(table.c.error.is_(None)).order_by(table.c.number).limit(limit)
        rows = connection.execute(chosen.with_for_update(skip_locked=True)).mappings().all()
        done: list[int] = []
        try:
            for row in rows:
                try:
                    with suppress(DuplicateJob):  # it is there already
                        self._enqueue_row(client, row)
                    done.append(row["number"])
                except BrokerError:
                    raise
                except Exception as error:  # a hook of the user may raise anything, and must not stop the others
                    log.error("outbox row cannot be enqueued id=%s job=%s error=%r", row["id"], row["job"], str(error))
                    mended = table.update().where(table.c.number == row["number"])
                    connection.execute(mended.values(error=f"{type(error).__name__}: {error}"))
        finally:
            # Also after an error: what the broker has confirmed must not be enqueued again.
            connection.execute(delete(table).where(table.c.number.in_(done)))
            connection.commit()
        return len(done), len(rows)

    def _enqueue_row(self, client: Client, row: RowMapping) -> None:
        definition = jobs.find(row["job"])
        json = client.serializers.get("json")
        call: Any = json.loads(row["arguments"].encode(), definition.classes if definition is not None else {})
        options: Any = json.loads(row["options"].encode(), {})
        client.enqueue(definition or row["job"], call["args"], call["kwargs"], id=row["id"], **options)
