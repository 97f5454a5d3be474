"""Files that cannot be a broker, or stop being one: one clear error each, and nothing lost; their modes; and memory."""

# ruff: noqa: ASYNC240 - a test may wait for the disk

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from palermo.brokers.sqlite import SqliteBroker
from palermo.brokers.sqlite.file import opening, store
from palermo.brokers.sqlite.file.store import translated
from palermo.client.client import Client
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.recurring_entries import EntryChange
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack, Fail, fail
from palermo.core.message import Message
from palermo.errors import BrokerError, BrokerUnavailable, NotFound, PublishRefused, StoreInvalid, UrlInvalid
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.contract.files import change, clear_the_disk, fill, fill_the_disk, locked, look, opened
from tests.contract.recurring import entry, fire, names
from tests.contract.timing import due, time_kept
from tests.contract.tools import FAILURE, counts, ids, message, messages, until
from tests.contract.unique_jobs import ask, holders, keyed
from tests.contract.workers import Report, at_work, consume, take, take_and_ack

NOBODY = 65_534

#: A text of bytes that are none.
NO_UTF8 = object()


def seen(path: Path) -> float:
    """When a session renewed its claim on the file last."""
    with closing(sqlite3.connect(path)) as db:
        ((found,),) = db.execute("select value from meta where key = 'seen'").fetchall()
    return float(found)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: path.write_text("my diary\n" * 200), r"jobs\.db is not a SQLite database"),
        (lambda path: change(path, "create table recipe (name text)"), "another program's database"),
    ],
    ids=["a text", "another program's"],
)
async def test_a_file_of_something_else_is_left_alone(path: Path, make: Callable[[Path], object], told: str) -> None:
    make(path)
    before = path.read_bytes()

    with pytest.raises(StoreInvalid, match=told):
        await opened(path)

    assert path.read_bytes() == before


async def test_a_newer_schema_is_refused(path: Path) -> None:
    await fill(path)
    change(path, "pragma user_version = 99")

    with pytest.raises(StoreInvalid, match="newer Palermo"):
        await opened(path)


@pytest.mark.parametrize(
    ("url", "error", "told"),
    [
        ("nowhere/jobs.db", StoreInvalid, r"the folder .*/nowhere does not exist"),
        ("", StoreInvalid, "is a folder"),
        ("jobs.db?colour=blue", UrlInvalid, "unknown option 'colour'"),
        ("jobs.db?timeout=soon", UrlInvalid, "not a number of seconds"),
    ],
)
async def test_a_wrong_address_is_refused(tmp_path: Path, url: str, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        await opened(f"{tmp_path}/{url}")


async def test_a_damaged_file_is_said_to_be_damaged(path: Path) -> None:
    await fill(path, *messages(200))
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(path.stat().st_size - 4096))

    with pytest.raises(StoreInvalid, match=r"jobs\.db"):
        await look(path)


async def test_tables_that_are_gone_are_missed(broker: Broker, path: Path) -> None:
    change(path, "drop table job")

    with pytest.raises(StoreInvalid, match="does not have Palermo's tables"):
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


@pytest.mark.parametrize("what", ["folder", "file"])
async def test_what_may_only_be_read_is_named_and_left_alone(open_folder: Path, what: str) -> None:
    path = open_folder / "jobs.db"
    if what == "file":
        await fill(path, message("7c9e"))
        path.chmod(0o444)
    else:
        open_folder.chmod(0o555)

    told = "cannot be" if what == "file" else "no permission to write there"
    with unprivileged(), pytest.raises(StoreInvalid, match=told):
        await opened(path)

    if what == "file":
        path.chmod(0o644)
        assert await look(path) == ["7c9e"]


@pytest.mark.parametrize(
    ("ago", "told", "then"),
    [(15, "in use on another machine", 16), (-10_000_000, "try again in half a minute", 31)],
    ids=["a moment ago", "by a clock far ahead"],
)
async def test_a_file_of_another_machine_is_taken_over_in_time(path: Path, ago: float, told: str, then: float) -> None:
    await fill(path, message("7c9e"))
    change(path, "update meta set value = 'another' where key = 'machine'")
    change(path, "update meta set value = ? where key = 'seen'", time.time() - ago)

    with pytest.raises(StoreInvalid, match=told):
        await opened(path)

    assert seen(path) <= time.time()
    change(path, "update meta set value = value - ? where key = 'seen'", then)
    assert await look(path) == ["7c9e"]


async def test_a_session_renews_its_claim_on_it(broker: Broker, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "RENEW_EVERY", 0.0)
    change(path, "update meta set value = 0.0 where key = 'seen'")
    await broker.publish(message())

    assert time.time() - seen(path) < 600

    change(path, "update meta set value = 'another' where key = 'machine'")
    with pytest.raises(StoreInvalid, match="another machine"):
        await broker.publish(message())


async def test_an_unreadable_recurring_job_fires_nothing_until_it_is_replaced(broker: Broker, path: Path) -> None:
    for replacing in (False, True):
        await broker.change_recurring(EntryChange.put(entry()))
        change(path, """update recurring set state = '{"version": 99}'""")
        assert await names(broker) == []
        with pytest.raises(NotFound):
            await fire(broker, "sweep")
        with pytest.raises(NotFound):
            await broker.change_recurring(EntryChange.switch("sweep", on=False))

        if replacing:
            await broker.change_recurring(EntryChange.put(entry()))
            assert await names(broker) == ["sweep"]
        else:
            await broker.change_recurring(EntryChange.remove("sweep"))
            with pytest.raises(NotFound):
                await broker.change_recurring(EntryChange.remove("sweep"))


@pytest.mark.parametrize(
    ("where", "column", "value"),
    [
        *(("job", "headers", "{"), ("job", "headers", "[]"), ("job", "headers", '{"id":"\\ud800"}')),
        *(("job", "headers", b"\xff"), ("job", "headers", 7), ("job", "properties", "{")),
        *(("job", "properties", '{"priority":99999999999999999999}'), ("job", "content_type", NO_UTF8)),
        *(("later", "headers", "{"), ("later", "headers", b"\xff"), ("later", "properties", "{")),
    ],
)
async def test_a_bad_row_fails_alone(broker: Broker, path: Path, where: str, column: str, value: object) -> None:
    await broker.publish_many([due("1", 60), due("2", 60)] if where == "later" else [message("1"), message("2")])
    if value is NO_UTF8:
        change(path, "update job set content_type = cast(x'ff' as text), body = 'text' where message_id = '1'")
    else:
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
    if value is NO_UTF8:
        assert (held.message.content_type, held.message.body) == ("\\xff", b"text")
    await worker.settle(held, Fail(fail(held.message, FAILURE, worker="w")))

    assert (await take_and_ack(worker)).id == "2"
    (failed,) = (await broker.browse("failed")).messages
    assert (failed.id, failed.failure) == ("1", FAILURE)
    await until(lambda: counts(broker), (0, 0))


async def test_a_full_disk_does_not_count_as_a_workers_death(broker: Broker, path: Path) -> None:
    await broker.publish_many([message("held"), message("done"), message("next")])
    full = await opened(path)
    worker = await consume(full, slots=2)
    await take(worker, 1)
    done = await take(worker, 2)
    (consumer,) = full._consumers
    fill_the_disk(path)
    await worker.settle(done, Ack())
    await until(lambda: consumer._lost is not None, True)
    await worker.close()
    await full.close()
    clear_the_disk(path)

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


def test_after_the_file_was_removed_jobs_go_into_a_new_one(path: Path) -> None:
    with Client(Settings(url=f"sqlite:///{path}")) as client:
        client.enqueue("shop.note", ["before"], queue="jobs")
        client.enqueue("shop.note", ["the quick way"], queue="jobs")
        for name in (path, path.with_name("jobs.db-wal"), path.with_name("jobs.db-shm")):
            name.unlink()

        ids = [client.enqueue("shop.note", [number], queue="jobs").id for number in range(3)]

    with Client(Settings(url=f"sqlite:///{path}")) as client:
        assert [row["id"] for row in Inspector(client).jobs.list("jobs")] == ids


async def test_time_goes_on_after_a_refused_write(broker: Broker, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keeper = await opened(path)
    change(path, "create trigger refuse before insert on job begin select raise(abort, 'no'); end")
    await broker.publish(due("7c9e", 0.1))

    async with time_kept(keeper):
        await until(lambda: "cannot move due jobs" in caplog.text, True)
        change(path, "drop trigger refuse")
        await until(lambda: counts(broker), (1, 0))

    await keeper.close()


async def test_a_file_locked_for_too_long_is_unavailable(path: Path) -> None:
    broker = await opened(f"{path}?timeout=0.1")

    with locked(path), pytest.raises(BrokerUnavailable, match="locked by another program"):
        await broker.publish(message())

    await broker.publish(message("7c9e"))
    assert await ids(broker) == ["7c9e"]
    await broker.close()


def limit(broker: SqliteBroker, pages: int) -> None:
    """Give the file this much room; on a real disk see tests/chaos/test_broker_in_trouble.py."""
    broker._store._connection.execute(f"pragma max_page_count = {pages}")


@pytest.mark.parametrize("unique", [False, True], ids=["plain", "unique"])
async def test_a_full_disk_refuses_jobs_and_keys(broker: SqliteBroker, unique: bool) -> None:
    limit(broker, 300)
    stored: list[str] = []

    async def enqueue(id: str) -> None:
        if unique:
            assert (await ask(broker, keyed(id, key=id, body=bytes(20_000)), key=id)).outcome == "stored"
        else:
            await broker.publish(message(id, body=bytes(20_000)))
        stored.append(id)

    async def fill_up() -> None:
        for number in range(1_000):
            await enqueue(f"{number}")

    with pytest.raises(PublishRefused, match="disk is full"):
        await fill_up()

    assert stored
    assert await ids(broker) == stored
    assert not unique or [id for id, _ in await holders(broker)] == sorted(stored)
    limit(broker, 100_000)
    await enqueue(f"{len(stored)}")
    assert await broker.purge("jobs") == len(stored)


async def test_a_job_that_fails_on_a_full_disk_stays_where_it_is(broker: SqliteBroker) -> None:
    consumer, delivery = await at_work(broker, message("7c9e"))
    limit(broker, 1)  # no more than there are

    with pytest.raises(StoreInvalid, match="disk is full"):
        await consumer.settle(delivery, Fail(Message(id="7c9e", queue="jobs", job="j", body=bytes(100_000))))

    assert await counts(broker) == (0, 1)
    limit(broker, 100_000)
    await consumer.settle(delivery, Fail(fail(delivery.message, FAILURE, worker="w")))
    assert await ids(broker, "failed") == ["7c9e"]


#: A worker that takes one job, while the disk is full from then on, and ends as argument 2 says.
_ENDS_ON_A_FULL_DISK = """
import asyncio, os, sys
from pathlib import Path
from tests.contract.files import fill_the_disk, opened
from tests.contract.workers import consume, take

async def main(path, how):
    broker = await opened(path)
    worker = await consume(broker)
    await take(worker)
    (consumer,) = broker._consumers
    fill_the_disk(Path(path))
    if how == "killed":
        os.kill(os.getpid(), 9)
    if how == "lost":
        consumer._lose(asyncio.InvalidStateError("full"))
    await worker.close()
    await broker.close()
    return broker.after_failure()  # as a worker that is stopped while it waits for its next session

unfinished = asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(("how", "deaths"), [("stopped", ()), ("lost", ()), ("killed", ("pid:4711@example",))])
async def test_a_full_disk_is_no_workers_death(broker: Broker, path: Path, how: str, deaths: tuple[str, ...]) -> None:
    await broker.publish(message("7c9e"))
    command = [sys.executable, "-c", _ENDS_ON_A_FULL_DISK, str(path), how]
    await asyncio.to_thread(subprocess.run, command, check=how != "killed")
    clear_the_disk(path)
    for file in Path(opening.side_directory(str(path))).glob("*.lock"):
        os.utime(file, (0, 0))  # its file is old: the next session to open must not remove it

    next = await opened(path)

    again = await take(await consume(next, report=Report("jobs", pid=2)))
    assert (again.message.id, again.redelivered, again.deaths) == ("7c9e", True, deaths)
    await next.close()


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


def test_every_sqlite_error_is_translated() -> None:
    for error in sqlite_errors():
        for publishing in (False, True):
            found = translated(error, "jobs.db", publishing=publishing)

            assert isinstance(found, BrokerError), error
            assert "jobs.db" in str(found)
            assert "\n" not in str(found)


# -- modes of the file and of the files beside it, which hold the jobs' arguments; its mount


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}


def use(folder: Path) -> dict[str, int]:
    """The modes of all that is there while the file is in use."""
    with Client(Settings(url=f"sqlite:///{folder}/jobs.db")) as client:
        client.enqueue("shop.mail", ["hunter2"])
        Inspector(client).queues.pause("mail")
        return modes(folder)


@pytest.mark.parametrize(
    ("mask", "file", "folder"),
    [(0o022, 0o600, 0o700), (0o077, 0o600, 0o700), (0o007, 0o660, 0o770), (0o000, None, None)],
    ids=["usual", "strict", "the group writes", "all write"],
)
def test_the_umask_says_whether_a_group_reads_a_file_and_nobody_else_does(
    umask: Callable[[int], int], tmp_path: Path, mask: int, file: int | None, folder: int | None
) -> None:
    umask(mask)

    found = use(tmp_path)

    assert {"jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db.d"} <= found.keys()
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o007} == {}
    if file is not None:
        assert (found["jobs.db"], found["jobs.db-wal"], found["jobs.db.d"]) == (file, file, folder)


def test_a_file_needs_no_mknod(umask: Callable[[int], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mknod(path: str, mode: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), path)  # as macOS answers

    monkeypatch.setattr(os, "mknod", mknod)

    found = use(tmp_path)

    assert (found["jobs.db"], found["jobs.db-wal"], found["jobs.db.d"]) == (0o600, 0o600, 0o700)


def test_files_beside_a_shared_file_have_its_group(umask: Callable[[int], int], tmp_path: Path) -> None:
    """Workers of another user could not open a killed worker's lock, so nobody took its job over."""
    umask(0o007)
    tmp_path.chmod(0o2770)

    found = use(tmp_path)

    assert found["jobs.db.d"] == 0o2770


def test_public_files_warn_once(umask: Callable[[int], int], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as db:
        db.execute("vacuum")
    os.chmod(tmp_path / "jobs.db", 0o644)
    with caplog.at_level(logging.WARNING, "palermo"):
        use(tmp_path)
        use(tmp_path)

    (line,) = [record.getMessage() for record in caplog.records]
    assert "chmod 600" in line
    assert "mode=644" in line
    assert (tmp_path / "jobs.db").name in line


async def test_a_file_mounted_without_its_folder_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each container would have a write-ahead log of its own: jobs of one are unseen by the other, and lost with it."""
    await fill(path, message("7c9e"))
    mounted = [("/", "overlay"), (str(path), "ext4")]
    monkeypatch.setattr(opening, "mounts", lambda: mounted)

    with pytest.raises(StoreInvalid, match="Mount its folder"):
        await opened(path)

    mounted[1] = (str(path.parent), "ext4")
    assert await look(path) == ["7c9e"]


# -- in memory: a file that ends with its last session


URL = "sqlite:///:memory:"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the test's process keeps what is in memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


async def test_sessions_of_one_process_share_what_is_in_memory(sessions: list[Broker]) -> None:
    at = [SessionParameters(address=parse_url(URL), exchange=exchange) for exchange in ("a", "a", "b")]
    first, second, elsewhere = [await open_broker(one) for one in at]
    sessions += first, second, elsewhere
    await first.publish(message("7c9e"))

    assert await ids(second) == ["7c9e"]
    assert await elsewhere.queues() == []


def test_what_is_in_memory_ends_with_the_last_session(folder: Path) -> None:
    with Client(Settings(url=URL)) as client:
        client.enqueue("shop.mail")
        assert len(list(folder.iterdir())) == 1

    assert list(folder.iterdir()) == []
    with Client(Settings(url=URL)) as client:
        assert client.run(lambda broker: broker.queues()) == []


def test_another_process_has_a_memory_of_its_own() -> None:
    program = (
        "from palermo.client.client import Client; from palermo.settings.settings import Settings\n"
        f"with Client(Settings(url={URL!r})) as client: print(client.run(lambda broker: broker.queues()))"
    )
    with Client(Settings(url=URL)) as client:
        client.enqueue("shop.mail")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
