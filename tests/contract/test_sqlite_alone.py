"""The embedded broker alone has these: several processes at one file, quick ways in and out of it, permits, damage.

Every column of every table gets values of wrong types, read from the schema itself, so new tables are tested too.
"""

import asyncio
import os
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from palermo.brokers.sqlite import SqliteBroker
from palermo.brokers.sqlite.file import notifier, opening, store
from palermo.brokers.sqlite.file.lock_holder import lock_holder
from palermo.brokers.sqlite.workers import OverdueClaims
from palermo.contract.broker import Broker, SessionParameters
from palermo.contract.sweep import Remove
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable, PalermoError, PublishRefused
from tests.contract.damaging import DAY, everything, fill
from tests.contract.files import locked, opened
from tests.contract.limiting import limited, nothing_permitted, permitted, worker
from tests.contract.offering import Start
from tests.contract.sqlite_peer import line, start
from tests.contract.tools import counts, ids, in_time, message, messages, until
from tests.contract.workers import consume, nothing_for, take, take_and_ack
from tests.helpers import Stopwatch

Peers = list["Popen[str]"]

#: A program that stops itself amid a transaction.
_STOPS = """
import os, signal, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("begin immediate")
print("locked", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def _stopped_writer(path: str) -> "Popen[str]":
    return Popen([sys.executable, "-c", _STOPS, path], stdout=PIPE, text=True)


@pytest.fixture
def peers() -> Iterator[Peers]:
    peers: Peers = []
    yield peers
    for peer in peers:
        peer.kill()
        peer.wait()
        if peer.stdout is not None:
            peer.stdout.close()


async def test_a_waiting_worker_takes_over_within_a_second(broker: Broker, path: Path, peers: Peers) -> None:
    async def takes_over() -> float:
        peers.append(start(f"sqlite:///{path}", "hold", 3))
        assert [line(peers[-1]) for _ in range(3)] == ["jobs-0", "jobs-1", "jobs-2"]
        assert [worker.pid for worker in await broker.workers()] == [99]
        assert await counts(broker) == (0, 3)
        consumer = await consume(broker)
        for _ in range(3):
            await nothing_for(consumer)
        assert len(await broker.workers()) == 2
        watch = Stopwatch()
        peers[-1].kill()
        held = await take(consumer)
        took = watch.seconds()
        assert (held.message.id, held.redelivered) == ("jobs-0", True)
        assert [worker.pid for worker in await broker.workers()] == [4711]
        await consumer.close()
        assert await ids(broker) == ["jobs-0", "jobs-1", "jobs-2"]
        return took

    await broker.publish_many(messages(3))
    await in_time(takes_over, within=1)


async def test_a_process_stopped_while_it_writes_is_named(
    broker: Broker, path: Path, peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    writer = _stopped_writer(str(path))
    peers.append(writer)
    line(writer)
    waiting = asyncio.ensure_future(broker.publish(message("a")))

    told = f"process {writer.pid}, which is stopped (kill -CONT {writer.pid}"
    await until(lambda: told in caplog.text, True)
    writer.kill()
    await waiting
    assert lock_holder(str(path)) == "another process"


async def test_a_worker_waits_long_for_a_locked_file(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = await opened(f"{path}?timeout=0.5")
    consumer = await consume(broker)
    await broker.publish_many(messages(2))
    first = await take(consumer)
    with locked(path):
        await consumer.settle(first, Ack())
        second = asyncio.ensure_future(take(consumer))
        # This is logged after two seconds.
        await until(lambda: "has been locked by" in caplog.text, True)

    assert (await second).message.id == "jobs-1"
    assert await counts(broker) == (0, 1)
    await broker.close()


@pytest.mark.parametrize("watching", [True, False], ids=["inotify", "polling"])
async def test_a_job_starts_in_50_ms(
    broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch, watching: bool
) -> None:
    if not watching:
        monkeypatch.setattr(notifier, "_watch", lambda path: None)
    other = await opened(path)
    consumer = await consume(other)
    watch, waits = Stopwatch(), list[float]()
    for _ in range(21):
        waiting = asyncio.create_task(take_and_ack(consumer))
        await until(lambda: counts(broker), (0, 0))
        await broker.publish(message(str(time.time())))
        waits.append(time.time() - float((await waiting).id))
    await other.close()

    # The median, since the machine of a test may be busy with others.
    assert sorted(waits)[10] < 0.05 + watch.stalled()


async def test_a_forked_child_does_not_keep_its_parents_jobs(broker: Broker, path: Path, peers: Peers) -> None:
    await broker.publish(message("7c9e"))

    async def gone() -> float:
        peers.append(start(f"sqlite:///{path}", "hold_and_fork"))
        assert line(peers[-1]) == "7c9e"
        child = int(line(peers[-1]))
        watch = Stopwatch()
        peers[-1].kill()
        try:
            await until(broker.workers, [])
        finally:
            os.kill(child, signal.SIGKILL)
        return watch.seconds()

    await in_time(gone, within=1)


async def test_a_turns_ends_share_a_commit(broker: SqliteBroker, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RENEW_EVERY", 600.0)  # it is a transaction as well
    await broker.publish_many(messages(4))
    slots = await start(broker, count=2)
    await slots.given("jobs-0", "jobs-1")
    committed: list[str] = []
    broker._store._connection.set_trace_callback(committed.append)

    for delivery in slots.taken[:2]:
        slots.consumer.acknowledge(delivery)
    await slots.given("jobs-0", "jobs-1", "jobs-2", "jobs-3")

    broker._store._connection.set_trace_callback(None)
    assert committed.count("commit") == 1
    assert {delivery.slot for delivery in slots.taken[2:]} == {1, 2}


async def test_a_slot_that_stops_gets_no_job_for_the_one_it_ends(broker: SqliteBroker, start: Start) -> None:
    await broker.publish_many(messages(2))
    slots = await start(broker)

    slots.consumer.acknowledge(await slots.given("jobs-0"))
    slots.receiving[1].cancel()

    await until(lambda: counts(broker), (1, 0))
    await slots.given("jobs-0")
    assert not (await take(await consume(broker))).redelivered


async def test_the_ordinary_way_waits_for_the_writer(broker: SqliteBroker, start: Start, path: Path) -> None:
    await broker.publish_many(messages(2))
    slots = await start(broker)
    first = await slots.given("jobs-0")

    with locked(path):
        slots.consumer.acknowledge(first)
        await asyncio.sleep(0)

    await slots.given("jobs-0", "jobs-1")


def stores(broker: SqliteBroker, one: Message) -> bool:
    """Whether the calling thread stores the message itself, and is told so before the call returns."""
    told: list[PalermoError | None] = []
    begun = broker.try_publish(one, told.append)
    assert told == ([None] if begun else [])
    return begun


async def thread_stores(broker: SqliteBroker, one: Message) -> bool:
    return await asyncio.to_thread(stores, broker, one)


async def test_a_thread_stores_plain_jobs_by_itself_and_no_others(broker: SqliteBroker, path: Path) -> None:
    assert not await thread_stores(broker, message("first")), "its queue is to be made"
    await broker.publish(message("first"))

    assert await thread_stores(broker, message("second"))

    assert not await thread_stores(broker, message("delayed", run_at=2.0**32))
    assert not await thread_stores(broker, message("of a tenant", tenant="acme"))
    with locked(path):
        assert not await thread_stores(broker, message("for a busy file"))
    assert await ids(broker) == ["first", "second"]


async def test_coroutines_share_a_transaction_in_order(broker: SqliteBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RENEW_EVERY", 600.0)  # it is a transaction as well
    await broker.publish(message("first"))
    assert not stores(broker, message("alone")), "the session's own thread stores none by itself"
    committed: list[str] = []
    broker._store._connection.set_trace_callback(committed.append)

    await asyncio.gather(*(broker.publish(one) for one in messages(20)))

    broker._store._connection.set_trace_callback(None)
    assert committed.count("commit") == 1
    assert await ids(broker) == ["first", *(one.id for one in messages(20))]


async def test_a_job_that_the_file_refuses_is_refused_alone(broker: SqliteBroker) -> None:
    jobs = [message("first"), message("bad \udc80"), message("last")]

    errors = await asyncio.gather(*(broker.publish(one) for one in jobs), return_exceptions=True)

    assert [type(error) for error in errors] == [type(None), PublishRefused, type(None)]
    assert await ids(broker) == ["first", "last"]


async def test_a_coroutine_that_is_cancelled_before_its_turn_stores_no_job(broker: SqliteBroker) -> None:
    enqueuing = [asyncio.ensure_future(broker.publish(one)) for one in messages(3)]
    await asyncio.sleep(0)
    enqueuing[0].cancel()
    enqueuing[1].cancel()

    found = await asyncio.gather(*enqueuing, return_exceptions=True)

    assert [type(one) for one in found] == [asyncio.CancelledError, asyncio.CancelledError, type(None)]
    assert await ids(broker) == ["jobs-2"]


async def test_who_enqueues_on_a_closed_session_hears_of_it(broker: SqliteBroker) -> None:
    await broker.publish(message("first"))
    await broker.close()

    assert not await thread_stores(broker, message("second"))

    errors = await asyncio.gather(*(broker.publish(one) for one in messages(3)), return_exceptions=True)

    assert [type(error) for error in errors] == 3 * [BrokerUnavailable]
    assert len({id(error) for error in errors}) == 3, "tracebacks of all would add up in one"


def replace_by_text(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        if file.is_file():
            file.unlink()
    path.write_text("my diary" * 1_000)


def is_open(path: Path) -> bool:
    """Whether this process has the file open."""
    return str(path) in [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into Linux's /proc")
async def test_a_file_that_is_no_database_any_more_is_not_left_open(broker: SqliteBroker, path: Path) -> None:
    await broker.publish(message("first"))
    assert is_open(path)
    replace_by_text(path)

    assert not await thread_stores(broker, message("second"))

    assert not is_open(path)


async def overdue(broker: SqliteBroker) -> None:
    """Have the `rerun_after` of the jobs that run be over."""
    await broker._store.write(lambda db: db.execute("update job set held_until = 1 where holder is not null"))


async def test_a_clock_that_jumps_ahead_ends_no_claim_of_a_worker_that_goes_on(broker: SqliteBroker) -> None:
    await broker.publish(message("7c9e", rerun_after=600.0))
    await take(await consume(broker))
    (consumer,) = broker._consumers
    consumer._beating.cancel()
    await overdue(broker)
    claims = OverdueClaims(broker._store, broker._directory, 0)

    for second in range(50):
        os.utime(os.path.join(broker._directory, consumer._lock.name), (second, second))
        assert await claims.release() == 0
    while not await claims.release():
        pass

    assert await ids(broker) == ["7c9e"]


async def test_a_job_that_is_held_too_long_hands_its_permit_on(broker: SqliteBroker, path: Path) -> None:
    session = await opened(path)
    await broker.publish_many([limited("1"), limited("2")])
    await permitted(await worker(session, 1))
    other = await worker(broker, 2)
    await nothing_permitted(other)

    await overdue(session)
    session._consumers[0]._beating.cancel()

    assert (await permitted(other)).message.id == "2"
    await session.close()


@pytest.mark.parametrize(
    "remove",
    [
        lambda broker: broker.purge("other"),
        lambda broker: broker.delete("other"),
        lambda broker: broker.sweep("other", lambda message: Remove()),
    ],
    ids=["purge", "delete", "sweep"],
)
async def test_a_removal_frees_a_permit(broker: SqliteBroker, remove: Callable[[Broker], Awaitable[object]]) -> None:
    await broker.publish_many([limited("1"), limited("2", queue="other"), limited("3", queue="third")])
    consumer = await consume(broker, "jobs,other,third", slots=2)
    first = await permitted(consumer, 1)
    await nothing_permitted(consumer, 2)
    await consumer.settle(first, Ack())

    await remove(broker)

    assert (await permitted(consumer, 1)).message.id == "3"


#: What another program, or a fault of a disk, may leave in a column, as SQL.
VALUES = ("null", "-1", "'{'", "x'ff'", "cast(x'ff' as text)")


def columns() -> list[tuple[str, str]]:
    """All columns of all tables of a new file, but for what keeps a second machine out."""
    query = """select t.name, c.name from sqlite_master t join pragma_table_info(t.name) c
        where t.type = 'table' and t.name not like 'sqlite_%' and t.name <> 'meta'"""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript((Path(opening.__file__).parent / "schema.sql").read_text(encoding="utf-8"))
        return db.execute(query).fetchall()


def at_once() -> list[list[tuple[str, str]]]:
    """The columns that are damaged at once: one of each table that no other operation reads, and each other alone."""
    apart = ("log", "cancel", "message", "recurring", "limited", "unique_job", "replay")
    found = columns()
    together = zip_longest(*([one for one in found if one[0] == table] for table in apart))
    alone = [[one] for one in found if one[0] not in apart]
    return [*alone, *([one for one in row if one is not None] for row in together)]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with two rows in each table."""
    path = tmp_path_factory.mktemp("damage") / "full.db"
    asyncio.run(make(path))
    return path.with_suffix(".copy.db")


def session(path: Path) -> SessionParameters:
    return SessionParameters(address=parse_url(f"sqlite:///{path}"), keep_events=True)


async def make(path: Path) -> None:
    opened = await fill(session(path))
    db = sqlite3.connect(path)
    with db:
        for name in ("a", "b"):
            values = (name, time.time() + DAY)
            db.execute("insert into message (exchange, channel, body, at) values ('palermo', ?, '{}', ?)", values)
            db.execute("insert into replay values ('palermo', ?, '0 1')", (name,))
            db.execute(
                "insert or ignore into turn (queue, mark) select id, 1 from queue where name = ?", (f"{name}-queue",)
            )
    for table in dict(columns()):
        ((rows,),) = db.execute(f"select count(*) from {table}").fetchall()
        assert rows >= 2, f"{table} has {rows} row(s): fill it here, so that its columns are tested"
    db.execute("vacuum into ?", (str(path.with_suffix(".copy.db")),))
    db.close()
    for broker in opened:
        await broker.close()


@pytest.mark.slow
@pytest.mark.parametrize("damaged", at_once(), ids=lambda damaged: " ".join(map(".".join, damaged)))
def test_a_damaged_row_stops_no_other(full: Path, tmp_path: Path, damaged: list[tuple[str, str]]) -> None:
    def found(value: str) -> list[str]:
        path = tmp_path / f"{VALUES.index(value)}.db"
        shutil.copy(full, path)
        path.chmod(0o600)
        done = [damage(path, table, column, value) for table, column in damaged]
        return [f"{value}: {one}" for one in asyncio.run(everything(session(path)))] if any(done) else []

    with ThreadPoolExecutor() as threads:  # each waits for the disk most of the time
        foreign = [one for each in threads.map(found, VALUES) for one in each]

    assert not foreign, "\n".join(foreign)


def damage(path: Path, table: str, column: str, value: str) -> bool:
    """Put the value into the first row of a table; returns whether its own rules let that be."""
    db = sqlite3.connect(path)
    key = ", ".join(name for name, *_ in db.execute("select name from pragma_table_info(?) where pk", (table,)))
    try:
        with db:
            db.execute(f"update {table} set {column} = {value} where ({key}) = (select {key} from {table} limit 1)")
    except sqlite3.IntegrityError:
        return False
    finally:
        db.close()
    return True
