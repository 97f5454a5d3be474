"""Jobs and SQLAlchemy's transactions, on a database of the test's own."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from sqlalchemy import MetaData, create_engine, text
from sqlalchemy.dialects import mssql, mysql, postgresql
from sqlalchemy.engine import Dialect, Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.schema import CreateTable

import palermo
from palermo import errors
from palermo.client.client import Client
from palermo.contrib.sqlalchemy import Outbox, enqueue_after_commit
from palermo.errors import (
    ArgumentsInvalid,
    BrokerRefused,
    BrokerUnavailable,
    NotFound,
    PublishRefused,
    ResultTimeout,
    UsageError,
)
from palermo.testing import Palermo

Waiting = Callable[[], list[str]]
Away = Callable[[], AbstractContextManager[Client]]


@palermo.job
def send(number: int) -> None:
    """A job that nobody runs here."""


@palermo.job(keep_result=True)
def double(number: int) -> int:
    return 2 * number


@palermo.job
def refused(number: int) -> None:
    """A job that is never enqueued."""


@refused.hook
def before_enqueue(number: int) -> None:
    raise LookupError("no such order: \0\udc80")


metadata = MetaData()
outbox = Outbox(metadata)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/data.db")
    metadata.create_all(engine)
    yield engine
    engine.dispose()


# MySQL makes a LONGTEXT of a TEXT of this length; SQLAlchemy an NVARCHAR(max) of NTEXT, once it knows the server.
@pytest.mark.parametrize(
    ("dialect", "type"),
    [(postgresql.dialect(), "TEXT"), (mysql.dialect(), "TEXT(16777216)"), (mssql.dialect(), "NTEXT")],
    ids=["postgresql", "mysql", "mssql"],
)
def test_the_table_holds_large_arguments_in_any_language(dialect: Dialect, type: str) -> None:
    declared = str(CreateTable(outbox.table).compile(dialect=dialect))

    assert f"arguments {type} NOT NULL" in declared


def test_a_commit_enqueues_in_order_and_a_rollback_nothing(engine: Engine, waiting: Waiting) -> None:
    with Session(engine) as session:
        with pytest.raises(ArgumentsInvalid):
            enqueue_after_commit(session, send)
        enqueue_after_commit(session, send, 1)
        session.add(outbox._entry())  # without a value for any column
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        enqueue_after_commit(session, send, 2)
        enqueue_after_commit(session, send.options(queue="slow"), number=3)
        assert waiting() == []
        session.commit()
        session.execute(text("SELECT 1"))
        session.commit()

    assert waiting() == ["send(2)", "send(number=3)"]


def test_a_savepoint_takes_its_jobs_with_it(engine: Engine, waiting: Waiting) -> None:
    with Session(engine) as session, session.begin():
        with session.begin_nested():
            enqueue_after_commit(session, send, 1)
        with session.begin_nested() as savepoint:
            with session.begin_nested():
                enqueue_after_commit(session, send, 2)
            savepoint.rollback()
        enqueue_after_commit(session, send, 3)
        assert waiting() == []
    with Session(engine) as session:
        with session.begin_nested():  # released, and then the transaction around it is rolled back
            enqueue_after_commit(session, send, 4)
        session.rollback()

    assert waiting() == ["send(1)", "send(3)"]


def test_the_handle_of_a_job_after_a_commit_is_of_the_one_with_its_key(engine: Engine) -> None:
    jobs = []
    session = scoped_session(sessionmaker(engine))
    with Palermo() as test:
        for _ in range(2):
            jobs.append(enqueue_after_commit(session, double.options(unique="until_done"), 4))
            assert jobs[-1].status() == "unknown"
            session.commit()
        session.remove()
        test.work()

        assert [job.enqueued for job in jobs] == [True, False]
        assert [job.result(10) for job in jobs] == [8, 8]
        assert test.client.job_by_id(jobs[0].id).status() == "done"


def test_a_commit_enqueues_what_its_outbox_holds(engine: Engine, waiting: Waiting) -> None:
    with Session(engine) as session, session.begin():
        first = outbox.enqueue(session, send, 1)
        with session.begin_nested() as savepoint:
            outbox.enqueue(session, send, 2)
            savepoint.rollback()
        outbox.enqueue(session, send.options(queue="slow", id="mine"), 3)
    with Session(engine) as session:
        gone = outbox.enqueue(session, double, 4)
        session.rollback()
        outbox.enqueue(session, send, 5)
        session.commit()

    assert waiting() == ["send(1)", "send(5)", "send(3)"]
    assert [job.status() for job in (first, palermo.job_by_id("mine"))] == ["pending", "pending"]
    assert (outbox.sweep(engine, min_age=0), outbox.waiting(engine)) == (0, (0, 0.0))
    assert gone.status() == "unknown"
    with pytest.raises(NotFound):
        gone.result(10)


def test_the_handle_of_a_job_in_an_outbox_waits_until_it_is_swept(engine: Engine, away: Away) -> None:
    with away(), Session(engine) as session, session.begin():
        job = outbox.enqueue(session, double, 4)

    with Palermo() as test:
        handle = dataclasses.replace(job, _client=test.client)
        assert (handle.status(), handle.queue, handle.job) == ("outbox", "jobs", f"{__name__}.double")
        with pytest.raises(ResultTimeout, match=rf"job {job.id} is still in the outbox after 0\.1 s"):
            handle.result(0.1)
        waits = [asyncio.to_thread(handle.result, 120), handle.result_async(120)]
        outbox_emptied = asyncio.to_thread(lambda: (sleep(0.3), outbox.sweep(engine, min_age=0), test.work()))

        assert asyncio.run(gathered(*waits, outbox_emptied))[:2] == [8, 8]
        assert handle.status() == "done"


def test_an_outbox_of_an_asyncio_engine_is_waited_for(tmp_path: Path, engine: Engine) -> None:
    async def program() -> None:
        async_engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/data.db")
        async with AsyncSession(async_engine) as session, session.begin():
            job = outbox.enqueue(session, double, 4)
            other = enqueue_after_commit(session, double, 5)
            assert await job.status_async() == "unknown"  # it is not committed
        with pytest.raises(UsageError, match="status_async"):
            job.status()
        await test.work_async()
        assert (await job.result_async(10), await other.result_async(10)) == (8, 10)
        await async_engine.dispose()

    with Palermo() as test:
        asyncio.run(program())


def test_a_session_on_the_connection_of_a_test_enqueues_at_its_commit(engine: Engine, waiting: Waiting) -> None:
    joined = {"join_transaction_mode": "create_savepoint"}
    with engine.connect() as connection, connection.begin(), Session(connection, **joined) as session:
        job = outbox.enqueue(session, send, 1)
        session.commit()

        assert (waiting(), job.status()) == (["send(1)"], "pending")
        assert session.execute(outbox.table.select()).first() is None


def test_one_commit_waits_for_an_absent_broker(engine: Engine, away: Away, caplog: pytest.LogCaptureFixture) -> None:
    with away():
        for number in (1, 2):
            with Session(engine) as session, session.begin():
                outbox.enqueue(session, send, number)
        with pytest.raises(BrokerUnavailable):
            outbox.sweep(engine, min_age=0)

        with Session(engine) as session:  # without an outbox the commit reports it
            session.execute(text("CREATE TABLE data (number INTEGER)"))
            enqueue_after_commit(session, send, 1)
            with pytest.raises(BrokerUnavailable):
                session.commit()
            assert session.execute(text("SELECT count(*) FROM data")).scalar() == 0

    assert outbox.waiting(engine)[0] == 2
    assert len([one for one in caplog.records if "wait for a sweep" in one.message]) == 1


def test_a_row_with_the_id_or_key_of_another_is_deleted(engine: Engine, waiting: Waiting) -> None:
    deduplicated = send.options(dedupe=3600, id="one")
    unique = send.options(unique="until_done")
    # The first twice, as after a sweep that was killed before it deleted the row.
    for job, number in ((deduplicated, 1), (deduplicated, 1), (unique, 2), (unique, 2), (unique, 3)):
        with Session(engine) as session, session.begin():
            outbox.enqueue(session, job, number)

    assert (waiting(), outbox.waiting(engine)[0]) == (["send(1)", "send(2)", "send(3)"], 0)


def test_a_job_for_later_counts_from_when_it_was_stored(engine: Engine, away: Away) -> None:
    with away(), Session(engine) as session, session.begin():
        job = outbox.enqueue(session, send.options(delay=3600), 1)
        session.flush()
        stored = session.execute(text("SELECT options FROM palermo_outbox")).scalar()

    assert outbox.sweep(engine) == 0  # a row as young as this is left to the program that stored it
    assert outbox.sweep(engine, min_age=0) == 1
    assert str(palermo.job_by_id(job.id).status().run_at) in str(stored)


@pytest.mark.parametrize("swept", [False, True])
def test_a_row_that_can_never_go_lets_others_pass(swept: bool, engine: Engine, away: Away, waiting: Waiting) -> None:
    with away() if swept else nullcontext(), Session(engine) as session, session.begin():
        job = outbox.enqueue(session, refused, 1)
        outbox.enqueue(session, send, 2)

    assert outbox.sweep(engine, min_age=0) == swept

    assert waiting() == ["send(2)"]
    with engine.connect() as connection:
        rows = connection.execute(outbox.table.select()).mappings().all()
    assert [row["error"] for row in rows] == [r"LookupError: no such order: \x00\udc80"]
    assert (job.status(), "no such order" in job.status().reason) == ("outbox", True)
    stays = "cannot be enqueued, and its row remains in the outbox: LookupError: no such"
    with pytest.raises(errors.JobFailed, match=stays):
        job.wait(10)


@pytest.mark.parametrize("ended_by", [errors.JobTimeout, errors.JobTerminated, errors.JobCancelled])
def test_a_sweep_that_is_ended_leaves_its_row(ended_by: type[Exception], engine: Engine, waiting: Waiting) -> None:
    @palermo.job
    def interrupted(number: int) -> None:
        """A job whose enqueue is interrupted once."""

    @interrupted.hook
    def before_enqueue(number: int) -> None:
        if number == 2 and not ended:
            ended.append(number)
            raise ended_by("the sweep must end")

    ended: list[int] = []
    with Session(engine) as session:
        for number in (1, 2, 3):
            outbox.enqueue(session, interrupted, number)
        with pytest.raises(ended_by):
            session.commit()
    assert (waiting(), outbox.waiting(engine)[0]) == (["interrupted(1)"], 2)
    assert outbox.sweep(engine, min_age=0) == 2

    assert waiting() == ["interrupted(1)", "interrupted(2)", "interrupted(3)"]


@pytest.mark.parametrize(("swept", "error"), [(False, PublishRefused), (True, BrokerRefused)])
def test_a_refused_job_does_not_keep_back_the_jobs_behind_it(
    swept: bool, error: type[Exception], engine: Engine, away: Away, waiting: Waiting
) -> None:
    @palermo.job
    def crowded(number: int) -> None:
        """A job whose queue is full until there is room."""

    @crowded.hook
    def before_enqueue(number: int) -> None:
        if full:
            raise error("queue jobs is full")

    full = [True]
    with away() if swept else nullcontext(), Session(engine) as session, session.begin():
        for number in (1, 2):
            outbox.enqueue(session, crowded, number)
        outbox.enqueue(session, send, 3)
    with pytest.raises(error):
        outbox.sweep(engine, limit=1, min_age=0)
    assert waiting() == ["send(3)"]
    full.clear()
    assert outbox.sweep(engine, min_age=0) == 2
    assert waiting() == ["send(3)", "crowded(1)", "crowded(2)"]


def test_a_row_whose_key_is_held_is_deleted_and_logged(
    engine: Engine, waiting: Waiting, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "palermo.outbox")
    with Session(engine) as session, session.begin():
        for each in ("return", "return", "raise"):
            outbox.enqueue(session, send.options(unique="until_done", unique_key="k", on_duplicate=each), 1)
    assert (waiting(), outbox.waiting(engine)[0]) == (["send(1)"], 0)
    assert caplog.text.count("outbox row not enqueued, another job has its key") == 2


def test_many_rows_are_moved_in_their_order(engine: Engine, waiting: Waiting) -> None:
    with Session(engine) as session, session.begin():
        for number in range(125):
            outbox.enqueue(session, send, number)
    assert outbox.waiting(engine)[0] == 25

    assert outbox.sweep(engine, limit=10, min_age=0) == 25

    assert waiting() == [f"send({number})" for number in range(100)]
    rows = palermo.inspector().jobs.list("jobs", offset=100)
    assert [row["preview"] for row in rows] == [str(n) for n in range(100, 125)]


async def gathered(*waits: Awaitable[Any]) -> list[Any]:
    return list(await asyncio.gather(*waits))
