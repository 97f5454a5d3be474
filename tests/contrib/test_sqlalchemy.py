"""Jobs and SQLAlchemy's transactions, on a database of the test's own."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import palermo
from palermo.client.client import Client
from palermo.contrib.sqlalchemy import Outbox, enqueue_after_commit
from palermo.errors import ArgumentsInvalid, BrokerUnavailable, JobCancelled, JobTerminated, JobTimeout

Waiting = Callable[[], list[str]]


@palermo.job
def send(number: int) -> None:
    """A job that nobody runs here."""


@palermo.job
def refused(number: int) -> None:
    """A job that is never enqueued."""


@refused.hook
def before_enqueue(number: int) -> None:
    raise LookupError("no such order")


metadata = MetaData()
outbox = Outbox(metadata)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path}/data.db")
    metadata.create_all(engine)
    yield engine
    engine.dispose()


def test_a_commit_enqueues_in_order(engine: Engine, waiting: Waiting) -> None:
    with Session(engine) as session, session.begin():
        enqueue_after_commit(session, send, 1)
        enqueue_after_commit(session, send.options(queue="slow"), number=2)
        assert waiting() == []

    assert waiting() == ["send(1)", "send(number=2)"]


def test_a_rollback_enqueues_nothing_and_the_session_goes_on(engine: Engine, waiting: Waiting) -> None:
    with Session(engine) as session:
        enqueue_after_commit(session, send, 1)
        session.rollback()
        enqueue_after_commit(session, send, 2)
        session.commit()
        session.execute(text("SELECT 1"))
        session.commit()

    assert waiting() == ["send(2)"]


def test_a_savepoint_that_is_rolled_back_takes_its_jobs_with_it(engine: Engine, waiting: Waiting) -> None:
    with Session(engine) as session, session.begin():
        with session.begin_nested():
            enqueue_after_commit(session, send, 1)
        with session.begin_nested() as savepoint:
            with session.begin_nested():
                enqueue_after_commit(session, send, 2)
            savepoint.rollback()
        enqueue_after_commit(session, send, 3)
        assert waiting() == []

    assert waiting() == ["send(1)", "send(3)"]


def test_a_released_savepoint_ends_with_the_transaction_around_it(engine: Engine, waiting: Waiting) -> None:
    with Session(engine) as session:
        with session.begin_nested():
            enqueue_after_commit(session, send, 1)
        session.rollback()

    assert waiting() == []


def test_a_flush_that_fails_enqueues_nothing(engine: Engine, waiting: Waiting) -> None:
    with Session(engine) as session:
        enqueue_after_commit(session, send, 1)
        session.add(outbox._entry())  # without a value for any column
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        session.commit()

    assert waiting() == []


def test_a_scoped_session_is_taken_for_the_session_behind_it(engine: Engine, waiting: Waiting) -> None:
    session = scoped_session(sessionmaker(engine))
    enqueue_after_commit(session, send, 1)
    session.commit()
    session.remove()

    assert waiting() == ["send(1)"]


def test_arguments_that_do_not_fit_are_refused_before_the_commit(engine: Engine) -> None:
    with Session(engine) as session, pytest.raises(ArgumentsInvalid):
        enqueue_after_commit(session, send)


def test_a_broker_that_is_away_is_told_after_the_commit_and_the_session_goes_on(engine: Engine) -> None:
    with palermo.connect("amqp://127.0.0.1:1/", publish_timeout=0.2), Session(engine) as session:
        session.execute(text("CREATE TABLE data (number INTEGER)"))
        enqueue_after_commit(session, send, 1)
        with pytest.raises(BrokerUnavailable):
            session.commit()

        assert session.execute(text("SELECT count(*) FROM data")).scalar() == 0


def test_the_outbox_keeps_jobs_with_the_data_until_it_is_swept(engine: Engine, waiting: Waiting) -> None:
    with Session(engine) as session, session.begin():
        first = outbox.enqueue(session, send, 1)
        outbox.enqueue(session, send.options(queue="slow", id="mine"), 2)
    with Session(engine) as session:
        outbox.enqueue(session, send, 3)
        session.rollback()
    assert (waiting(), outbox.waiting(engine)[0]) == ([], 2)

    assert outbox.sweep(engine) == 2

    assert waiting() == ["send(1)", "send(2)"]
    assert [str(palermo.job_by_id(id).status()) for id in (first, "mine")] == ["pending", "pending"]
    assert (outbox.sweep(engine), outbox.waiting(engine)) == (0, (0, 0.0))


def test_dedupe_refuses_a_row_that_is_moved_a_second_time(engine: Engine, waiting: Waiting) -> None:
    for _ in range(2):  # as after a sweep that was killed before it deleted the row
        with Session(engine) as session, session.begin():
            outbox.enqueue(session, send.options(dedupe=3600, id="one"), 1)

        assert outbox.sweep(engine) == 1

    assert waiting() == ["send(1)"]


def test_a_job_for_later_counts_from_when_it_was_stored(engine: Engine, client: Client) -> None:
    with Session(engine) as session, session.begin():
        id = outbox.enqueue(session, send.options(delay=3600), 1)
        stored = session.execute(text("SELECT options FROM palermo_outbox")).scalar()
    outbox.sweep(engine)

    assert str(palermo.job_by_id(id).status().run_at) in str(stored)


def test_rows_wait_while_the_broker_is_away(engine: Engine) -> None:
    with palermo.connect("amqp://127.0.0.1:1/", publish_timeout=0.2):
        with Session(engine) as session, session.begin():
            outbox.enqueue(session, send, 1)

        with pytest.raises(BrokerUnavailable):
            outbox.sweep(engine)

    assert outbox.waiting(engine)[0] == 1


def test_a_row_that_can_never_be_enqueued_lets_the_others_pass(engine: Engine, waiting: Waiting) -> None:
    with Session(engine) as session, session.begin():
        outbox.enqueue(session, refused, 1)
        outbox.enqueue(session, send, 2)

    assert outbox.sweep(engine) == 1

    assert waiting() == ["send(2)"]
    with engine.connect() as connection:
        rows = connection.execute(outbox.table.select()).mappings().all()
    assert [row["error"] for row in rows] == ["LookupError: no such order"]


@pytest.mark.parametrize("ended_by", [JobTimeout, JobTerminated, JobCancelled])
def test_a_sweep_whose_job_is_ended_leaves_the_row_for_the_next(
    ended_by: type[Exception], engine: Engine, waiting: Waiting
) -> None:
    @palermo.job
    def interrupted(number: int) -> None:
        """A job whose enqueue is interrupted once."""

    @interrupted.hook
    def before_enqueue(number: int) -> None:
        if number == 2 and not ended:
            ended.append(number)
            raise ended_by("the sweep must end")

    ended: list[int] = []
    with Session(engine) as session, session.begin():
        for number in (1, 2, 3):
            outbox.enqueue(session, interrupted, number)

    with pytest.raises(ended_by):
        outbox.sweep(engine)
    assert (waiting(), outbox.waiting(engine)[0]) == (["interrupted(1)"], 2)
    assert outbox.sweep(engine) == 2

    assert waiting() == ["interrupted(1)", "interrupted(2)", "interrupted(3)"]


def test_many_rows_are_moved_in_their_order(engine: Engine, waiting: Waiting) -> None:
    with Session(engine) as session, session.begin():
        for number in range(25):
            outbox.enqueue(session, send, number)

    assert outbox.sweep(engine, limit=10) == 25

    assert waiting() == [f"send({number})" for number in range(25)]


def test_an_event_loop_may_add_rows_too(tmp_path: Path, engine: Engine, waiting: Waiting) -> None:
    async def program() -> None:
        async_engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/data.db")
        async with AsyncSession(async_engine) as session, session.begin():
            outbox.enqueue(session, send, 1)
            enqueue_after_commit(session, send, 2)
        await async_engine.dispose()

    asyncio.run(program())

    assert waiting() == ["send(2)"]
    assert outbox.sweep(engine) == 1
