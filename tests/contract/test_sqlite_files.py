"""Files that cannot be a broker, or stop being one: one clear error each, and nothing lost."""

# ruff: noqa: ASYNC240 - a test may wait for the disk

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from palermo.brokers.sqlite import SqliteBroker
from palermo.brokers.sqlite.file import opening, store
from palermo.brokers.sqlite.file.store import translated
from palermo.client.client import Client
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.recurring_entries import EntryChange
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.address import parse_url
from palermo.core.journal_records import encode
from palermo.core.lifecycle import Ack, Fail, fail
from palermo.core.message import Message
from palermo.errors import BrokerError, BrokerUnavailable, PublishRefused, StoreInvalid, UrlInvalid
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.contract.recurring import entry, fires
from tests.contract.timing import due, time_kept
from tests.contract.tools import (
    FAILURE,
    Report,
    consume,
    counts,
    ids,
    message,
    messages,
    take,
    take_and_ack,
    until,
)
from tests.contract.unique_jobs import ask, holders, keyed

NOBODY = 65_534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def broker(runner: asyncio.Runner, path: Path) -> Iterator[Broker]:
    broker = runner.run(opened(path))
    yield broker
    runner.run(broker.close())


async def opened(path: Path | str, **more: float) -> Broker:
    return await open_broker(SessionParameters(address=parse_url(f"sqlite:///{path}"), **more))  # type: ignore[arg-type]


async def fill(path: Path, *sent: Message) -> None:
    broker = await opened(path)
    await broker.publish_many(sent)
    await broker.close()


async def look(path: Path) -> list[str]:
    broker = await opened(path)
    try:
        return await ids(broker)
    finally:
        await broker.close()


def change(path: Path, statement: str, *values: object) -> None:
    db = sqlite3.connect(path)
    with db:
        db.execute(statement, values)
    db.close()


def seen(path: Path) -> float:
    """When a session renewed its claim on the file last."""
    with closing(sqlite3.connect(path)) as db:
        ((found,),) = db.execute("select value from meta where key = 'seen'").fetchall()
    return float(found)


async def test_a_text_file_is_no_database_and_stays_as_it_was(path: Path) -> None:
    text = "my diary\n" * 200
    path.write_text(text)

    with pytest.raises(StoreInvalid, match=r"jobs\.db is not a SQLite database"):
        await opened(path)

    assert path.read_text() == text


async def test_another_programs_database_is_left_alone(path: Path) -> None:
    change(path, "create table recipe (name text)")
    before = path.read_bytes()

    with pytest.raises(StoreInvalid, match="another program's database"):
        await opened(path)

    assert path.read_bytes() == before


async def test_a_newer_schema_is_refused(path: Path) -> None:
    await fill(path)
    change(path, "pragma user_version = 99")

    with pytest.raises(StoreInvalid, match="written by a newer Palermo"):
        await opened(path)


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreInvalid, match=r"the folder .*/nowhere does not exist"):
        await opened(tmp_path / "nowhere" / "jobs.db")


async def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(StoreInvalid, match="is a folder"):
        await opened(tmp_path)


async def test_an_unknown_option_is_refused(path: Path) -> None:
    with pytest.raises(UrlInvalid, match="unknown option 'colour'"):
        await opened(f"{path}?colour=blue")
    with pytest.raises(UrlInvalid, match="not a number of seconds"):
        await opened(f"{path}?timeout=soon")


async def test_a_damaged_file_is_said_to_be_damaged(path: Path) -> None:
    await fill(path, *messages(200))
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))

    with pytest.raises(StoreInvalid, match=r"jobs\.db"):
        await look(path)


async def test_tables_that_are_gone_are_missed(broker: Broker, path: Path) -> None:
    change(path, "drop table job")

    with pytest.raises(StoreInvalid, match="does not have the tables"):
        await broker.publish(message())


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere, so for a moment we are not root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach."""
    folder = Path(tempfile.mkdtemp(prefix="palermo-test-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


async def test_a_folder_without_permission_is_named(open_folder: Path) -> None:
    open_folder.chmod(0o555)

    with unprivileged(), pytest.raises(StoreInvalid, match="may not write there"):
        await opened(open_folder / "jobs.db")


async def test_a_file_that_is_read_only_is_refused_and_keeps_its_jobs(open_folder: Path) -> None:
    path = open_folder / "jobs.db"
    await fill(path, message("7c9e"))
    path.chmod(0o444)

    with unprivileged(), pytest.raises(StoreInvalid, match="cannot be"):
        await opened(path)

    path.chmod(0o644)
    assert await look(path) == ["7c9e"]


async def test_a_second_machine_is_refused(path: Path) -> None:
    await fill(path, message("7c9e"))
    change(path, "update meta set value = 'another' where key = 'machine'")
    change(path, "update meta set value = ? where key = 'seen'", time.time() - 15)

    with pytest.raises(StoreInvalid, match="in use on another machine"):
        await opened(path)


async def test_a_file_that_another_machine_has_left_is_taken_over(path: Path) -> None:
    await fill(path, message("7c9e"))
    change(path, "update meta set value = 'another' where key = 'machine'")
    change(path, "update meta set value = ? where key = 'seen'", time.time() - 31)

    broker = await opened(path)

    assert await ids(broker) == ["7c9e"]
    await broker.close()


async def test_a_session_renews_its_claim_on_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RENEW_EVERY", 0.0)
    broker = await opened(path)
    change(path, "update meta set value = 0.0 where key = 'seen'")
    await broker.publish(message())

    assert time.time() - seen(path) < 600

    change(path, "update meta set value = 'another' where key = 'machine'")
    with pytest.raises(StoreInvalid, match="another machine"):
        await broker.publish(message())
    await broker.close()


async def test_a_file_used_by_a_clock_far_ahead_is_taken_over_soon(path: Path) -> None:
    await fill(path, message("7c9e"))
    change(path, "update meta set value = 'before the restart' where key = 'machine'")
    change(path, "update meta set value = ? where key = 'seen'", time.time() + 10_000_000)

    with pytest.raises(StoreInvalid, match="try again in half a minute"):
        await opened(path)

    assert seen(path) <= time.time()
    change(path, "update meta set value = value - 31 where key = 'seen'")
    assert await look(path) == ["7c9e"]


async def test_a_recurring_job_fired_by_a_clock_far_ahead_is_mended(broker: Broker, path: Path) -> None:
    await broker.change_recurring(EntryChange.put(entry()))
    (stored,) = await broker.recurring()
    ahead = json.dumps(replace(stored, since=time.time() + 86_400).to_plain())
    change(path, "update recurring set state = ?, due = ?", ahead, time.time() + 86_400)

    async with time_kept(broker):
        await until(lambda: fires(broker), True)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("headers", "{"),
        ("headers", "[]"),
        ("headers", '{"id":"\\ud800"}'),
        ("headers", b"\xff"),
        ("headers", 7),
        ("properties", "{"),
        ("properties", '{"priority":99999999999999999999}'),
    ],
)
@pytest.mark.parametrize("where", ["job", "later"])
async def test_an_unreadable_row_fails_alone(
    broker: Broker, path: Path, where: str, column: str, value: object
) -> None:
    await broker.publish_many([due("1", 60), due("2", 60)] if where == "later" else [message("1"), message("2")])
    change(path, f"update {where} set {column} = ? where message_id = '1'", value)

    if where == "later":
        shown = (await broker.scheduled(ScheduledFilter(retries=False))).messages
        assert [one.id for one in shown] == ["1", "2"]
        change(path, "update later set run_at = 1")
        async with time_kept(broker):
            await until(lambda: ids(broker), ["1", "2"])
    assert await ids(broker) == ["1", "2"]
    worker = await consume(broker)
    held = await take(worker)
    assert (held.message.id, held.redelivered) == ("1", False)
    await worker.settle(held, Fail(fail(held.message, FAILURE, worker="w")))

    assert (await take_and_ack(worker)).id == "2"
    (failed,) = (await broker.browse("failed")).messages
    assert (failed.id, failed.failure) == ("1", FAILURE)
    await until(lambda: counts(broker), (0, 0))


async def test_a_row_that_is_no_utf_8_fails_alone(broker: Broker, path: Path) -> None:
    await broker.publish_many([message("1"), message("2")])
    change(path, "update job set content_type = cast(x'ff' as text), body = 'text' where message_id = '1'")

    worker = await consume(broker)
    held = await take(worker)

    assert (held.message.content_type, held.message.body) == ("\\xff", b"text")
    await worker.settle(held, Fail(fail(held.message, FAILURE, worker="w")))
    assert (await take_and_ack(worker)).id == "2"
    assert await ids(broker, "failed") == ["1"]


async def test_an_unreadable_unique_key_is_free(broker: Broker, path: Path) -> None:
    change(path, "insert into key (exchange, name, due, state) values ('palermo', 'broken', 1, '{')")

    async with time_kept(broker):
        await broker.publish(due("7c9e", 0.1))
        await until(lambda: counts(broker), (1, 0))

    assert await broker.keys.known() == []
    assert (await ask(broker, keyed("1", key="broken"), key="broken")).outcome == "stored"


async def test_a_full_disk_does_not_count_as_a_workers_death(broker: Broker, path: Path) -> None:
    await broker.publish_many([message("held"), message("done"), message("next")])
    full = await opened(path)
    worker = await consume(full, slots=2)
    await take(worker, 1)
    done = await take(worker, 2)
    assert isinstance(full, SqliteBroker)
    (consumer,) = full._consumers
    for event in ("update of holder", "delete"):
        change(path, f"create trigger full_{event[:6]} before {event} on job begin select raise(abort, 'full'); end")
    await worker.settle(done, Ack())
    await until(lambda: asyncio.sleep(0, consumer._lost is not None), True)
    await worker.close()
    await full.close()
    change(path, "drop trigger full_update")
    change(path, "drop trigger full_delete")

    other = await consume(broker, report=Report("jobs", pid=2))
    assert (await take(other)).message.id == "next"
    assert await counts(broker) == (0, 3)
    resumed = await open_broker(full.after_failure())
    again = await take(await consume(resumed))

    assert (again.message.id, again.redelivered, again.deaths) == ("held", True, ())
    assert again.running_at == "pid:4711@example"
    assert await counts(broker) == (0, 2)
    await resumed.close()
    assert await ids(broker) == ["held"]


async def test_a_file_removed_in_use_is_noticed(path: Path) -> None:
    broker = await opened(path)
    await broker.publish(message())
    path.unlink()

    with pytest.raises(BrokerUnavailable, match="removed or replaced"):
        await broker.publish(message())
    await broker.close()


def test_after_the_file_was_removed_jobs_go_into_a_new_one(path: Path) -> None:
    with Client(Settings(url=f"sqlite:///{path}")) as client:
        client.enqueue("shop.note", ["before"], queue="jobs")
        client.enqueue("shop.note", ["the quick way"], queue="jobs")
        for name in (path, path.with_name("jobs.db-wal"), path.with_name("jobs.db-shm")):
            name.unlink()

        ids = [client.enqueue("shop.note", [number], queue="jobs").id for number in range(3)]

    with Client(Settings(url=f"sqlite:///{path}")) as client:
        assert [row["id"] for row in Inspector(client).jobs("jobs")] == ids


async def test_scheduled_jobs_come_due_again_after_the_file_could_not_be_written(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker, keeper = await opened(path), await opened(path)
    change(path, "create trigger refuse before insert on job begin select raise(abort, 'no'); end")
    await broker.publish(due("7c9e", 0.1))

    async with time_kept(keeper):
        await until(lambda: asyncio.sleep(0, "jobs that are due wait" in caplog.text), True)
        change(path, "drop trigger refuse")
        await until(lambda: counts(broker), (1, 0))

    await keeper.close()
    await broker.close()


async def test_a_file_locked_for_too_long_is_unavailable(path: Path) -> None:
    broker = await opened(f"{path}?timeout=0.1")
    other = sqlite3.connect(path)
    other.execute("begin immediate")

    with pytest.raises(BrokerUnavailable, match="locked by another program"):
        await broker.publish(message())

    other.rollback()
    other.close()
    await broker.publish(message("7c9e"))
    assert await ids(broker) == ["7c9e"]
    await broker.close()


class Limit:
    """SQLite's own limit on the size of a file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "jobs.db"

    def shrink(self, broker: Broker) -> None:
        self._limit(broker, 300)

    def grow(self, broker: Broker) -> None:
        self._limit(broker, 100_000)

    def _limit(self, broker: Broker, pages: int) -> None:
        assert isinstance(broker, SqliteBroker)
        broker._store._connection.execute(f"pragma max_page_count = {pages}")


class Disk(Limit):
    """A small disk of its own, with something on it that can be removed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._ballast = folder / "ballast"
        self._ballast.write_bytes(bytes(3_000_000))

    def shrink(self, broker: Broker) -> None:
        """It is small already."""

    def grow(self, broker: Broker) -> None:
        self._ballast.unlink()


@pytest.fixture(params=["limit", "disk"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Limit]:
    """Where there is little room: a real disk where we may mount one, else SQLite's own limit."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)]
    if request.param == "limit" or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield Limit(folder)
        return
    yield Disk(folder)
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_refuses_jobs_and_loses_none(small: Limit) -> None:
    broker = await opened(small.path)
    small.shrink(broker)
    stored: list[str] = []

    async def fill_up() -> None:
        for number in range(1_000):
            await broker.publish(message(f"jobs-{number}", body=bytes(20_000)))
            stored.append(f"jobs-{number}")

    with pytest.raises(PublishRefused, match="disk is full"):
        await fill_up()

    assert stored
    assert await ids(broker) == stored
    small.grow(broker)
    await broker.publish(message("room again"))
    assert await broker.purge("jobs") == len(stored) + 1
    await broker.close()


async def test_a_unique_job_that_a_full_disk_refuses_leaves_no_key(small: Limit) -> None:
    broker = await opened(small.path)
    small.shrink(broker)

    async def fill_up() -> None:
        for number in range(1_000):
            await ask(broker, keyed(f"{number}", key=f"{number}", body=bytes(20_000)), key=f"{number}")
            stored.append(f"{number}")

    stored: list[str] = []
    with pytest.raises(PublishRefused, match="disk is full"):
        await fill_up()

    assert [id for id, _ in sorted(await holders(broker))] == sorted(stored)
    small.grow(broker)
    next = f"{len(stored)}"
    assert (await ask(broker, keyed("again", key=next), key=next)).outcome == "stored"
    await broker.close()


async def test_a_job_that_fails_on_a_full_disk_stays_where_it_is(path: Path) -> None:
    broker = await opened(path)
    assert isinstance(broker, SqliteBroker)
    await broker.publish(message("7c9e"))
    consumer = await consume(broker)
    delivery = await take(consumer)
    db = broker._store._connection
    db.execute(f"pragma max_page_count = {db.execute('pragma page_count').fetchone()[0]}")
    failed = fail(delivery.message, FAILURE, worker="w")

    with pytest.raises(StoreInvalid, match="disk is full"):
        await consumer.settle(delivery, Fail(Message(id="7c9e", queue="jobs", job="j", body=bytes(100_000))))

    assert await counts(broker) == (0, 1)
    db.execute("pragma max_page_count = 100000")
    await consumer.settle(delivery, Fail(failed))
    assert await ids(broker, "failed") == ["7c9e"]
    await broker.close()


def sqlite_errors() -> list[sqlite3.Error]:
    """One of each class and of each code that there is."""
    kinds = [sqlite3.Error, *(kind for kind in vars(sqlite3).values() if isinstance(kind, type))]
    bare = [kind("told") for kind in dict.fromkeys(kinds) if issubclass(kind, sqlite3.Error)]
    coded = []
    for name, code in vars(sqlite3).items():
        if name.startswith("SQLITE_") and isinstance(code, int) and (code & 0xFF) in range(1, 27):
            error = sqlite3.OperationalError(f"told {name}")
            error.sqlite_errorcode = code
            coded.append(error)
    return [*bare, *coded]


@pytest.mark.parametrize("error", sqlite_errors(), ids=str)
def test_every_sqlite_error_is_translated(error: sqlite3.Error) -> None:
    for publishing in (False, True):
        found = translated(error, "jobs.db", publishing=publishing)

        assert isinstance(found, BrokerError)
        assert "jobs.db" in str(found)
        assert "\n" not in str(found)


async def test_what_sqlite_cannot_bind_is_refused(broker: Broker) -> None:
    with pytest.raises(PublishRefused):
        await broker.publish(message("\ud800"))

    assert (await broker.browse("failed") if await counts(broker, "failed") else None) is None
    await broker.publish(message("7c9e"))
    assert (await broker.browse("jobs", offset=10**30, limit=10**30)).total == 1


async def test_a_file_of_an_earlier_palermo_is_upgraded_with_all_that_is_in_it(path: Path) -> None:
    await fill(path, message("7c9e"))
    for trigger in ("job_gone", "tenant_claimed", "tenant_released", "tenant_removed"):
        change(path, f"drop trigger {trigger}")
    for table in ("answer", "command", "cancel", "pause", "later", "recurring", "journal", "subscription", "event"):
        change(path, f"drop table {table}")
    for table in ("key", "limited", "tenant", "turn", "unique_job"):
        change(path, f"drop table {table}")
    for index in ("job_next", "job_held_until", "job_permit"):
        change(path, f"drop index {index}")
    for column in ("deaths", "held_until", "priority", "permit", "tenant"):
        change(path, f"alter table job drop column {column}")
    change(path, "pragma user_version = 1")

    broker = await opened(path)

    assert (await broker.browse("jobs")).total == 1
    await broker.pause("jobs")
    assert [info.paused for info in await broker.queues()] == [True]
    await broker.publish(message("later", run_at=2.0**32))
    assert (await broker.scheduled(ScheduledFilter())).total == 1
    await broker.change_recurring(EntryChange.put(entry()))
    assert len(await broker.recurring()) == 1
    assert await broker.keys.known() == []
    await broker.close()
    await (await opened(path)).close()


async def test_the_journal_of_an_older_file_is_read_on_and_keeps_to_its_size(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(opening, "_SCHEMA", opening._SCHEMA[:10])
        older.setattr(opening, "SCHEMA_VERSION", 10)
        await fill(path)
    old = [encode("", [{"kind": "log", "at": 1.0, "id": f"{number}", "text": "x" * 20_000}]) for number in range(100)]
    for body in old:
        change(path, "insert into journal (exchange, at, body) values ('palermo', ?, ?)", time.time(), body)

    address = parse_url(f"sqlite:///{path}")
    broker = await open_broker(SessionParameters(address=address, journal_bytes=1_000_000))
    await broker.journal.append(encode("", [{"kind": "log", "at": 1.0, "id": "new"}]))
    read: list[str] = []
    reader = await broker.journal.read(lambda batch: read.extend(one["id"] for one in batch.records))
    await reader.caught_up.wait()
    await broker.close()

    assert read == [*(f"{number}" for number in range(101 - len(read), 100)), "new"]
    assert 40 < len(read) < 60
