"""Reading the journal forward through lost sessions and into another one, and from its end back for the newest page."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pika
import pytest

from palermo.client.client import Client
from palermo.client.journal_reading import BatchFilter
from palermo.core.journal_records import RecordBatch
from palermo.core.topology import internal
from palermo.errors import BrokerUnavailable, StoreInvalid
from palermo.history import journal_reader, listings
from palermo.history.journal_reader import JournalFollower, read_to_end
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from palermo.views.filter import JobFilter
from tests.helpers import eventually
from tests.history.written import NOON, batch, ended, enqueued, failed, write
from tests.tcp_proxy import TcpProxy


class Kept:
    """Remembers the ids it was given."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.resets = 0
        self.broken = False
        #: Whether it cannot even be reset.
        self.stuck = False

    def take(self, batch: RecordBatch) -> None:
        if self.broken:
            raise StoreInvalid("the disk is full.")
        self.ids += [record["id"] for record in batch.records]

    def reset(self) -> None:
        if self.stuck:
            raise StoreInvalid("the disk is full.")
        self.ids.clear()
        self.resets += 1
        self.broken = False


def patient_settings(url: str, exchange: str) -> Settings:
    """With patience: these tests are not about how fast a broker is."""
    return Settings(url=url, exchange=exchange, publish_timeout=30)


@contextmanager
def followed(settings: Settings, *takers: Kept) -> Iterator[JournalFollower]:
    found = JournalFollower(settings, takers)
    try:
        assert found.wait(60), found.progress
        yield found
    finally:
        found.close()


def test_all_who_keep_something_are_given_all_there_is_and_what_comes(any_settings: Settings) -> None:
    one, other = Kept(), Kept()
    with Client(any_settings) as client:
        with followed(any_settings, Kept()) as empty:
            assert (empty.progress.ready, empty.progress.records) == (True, 0)
        write(client, [ended("a"), ended("b")], [ended("c")])

        with followed(any_settings, one, other) as follower:
            assert one.ids == other.ids == ["a", "b", "c"]
            assert (follower.progress.records, follower.progress.part, follower.progress.error) == (3, 1.0, "")
            version = follower.progress.version
            write(client, [ended("d")])
            eventually(lambda: other.ids == ["a", "b", "c", "d"])
            assert follower.progress.version > version


def test_reading_goes_on_after_an_outage_or_begins_a_new_journal(rabbitmq_url: str, exchange: str) -> None:
    kept = Kept()
    address = pika.URLParameters(rabbitmq_url)
    with (
        TcpProxy(address.host, address.port) as proxy,
        Client(patient_settings(rabbitmq_url, exchange)) as client,
        pika.BlockingConnection(address) as connection,
    ):
        write(client, [ended("a")])
        through = rabbitmq_url.replace(f":{address.port}/", f":{proxy.port}/")
        with followed(patient_settings(through, exchange), kept) as follower:

            def lose_the_session() -> None:
                proxy.refuse()
                proxy.hang_up(reset=True)
                eventually(lambda: follower.progress.error)

            lose_the_session()
            write(client, [ended("b")], [ended("c")])
            assert follower.progress.ready
            proxy.listen()
            eventually(lambda: kept.ids == ["a", "b", "c"])
            eventually(lambda: follower.progress.error == "")
            assert kept.resets == 1

            lose_the_session()
            connection.channel().queue_delete(internal(exchange, "journal"))
            write(client, [ended("x")], [ended("y")])
            proxy.listen()
            eventually(lambda: kept.ids == ["x", "y"])

            # And with a session that goes on.
            connection.channel().queue_delete(internal(exchange, "journal"))
            write(client, [ended("p")], [ended("q")], [ended("r")])
            eventually(lambda: kept.ids == ["p", "q", "r"] and follower.progress.ready)
            assert follower.progress.records == 3


def test_an_odd_batch_is_not_the_end_and_a_full_disk_a_new_beginning(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(journal_reader, "_BROKEN_PAUSE", 0.2)
    kept = Kept()
    with Client(settings) as client, followed(settings, kept) as found:
        write(client, [{"kind": "started", "at": 1.0}], [ended("a")])
        eventually(lambda: kept.ids == ["a"])
        assert "bug: cannot keep a batch of the journal" in caplog.text

        kept.broken = kept.stuck = True
        write(client, [ended("b")])
        eventually(lambda: "the disk is full" in found.progress.error)
        kept.stuck = False
        eventually(lambda: kept.ids == ["a", "b"])
        assert kept.resets == 2
        eventually(lambda: found.progress.ready and found.progress.error == "")


def test_closing_ends_it_wherever_it_is(settings: Settings) -> None:
    threads = threading.enumerate()
    away = JournalFollower(Settings(url="amqp://127.0.0.1:1/", publish_timeout=0.2), [Kept()])
    away.begin()
    eventually(lambda: "BrokerUnavailable" in away.progress.error)
    reading = JournalFollower(settings, [Kept()])
    assert reading.wait(60)

    for found in (away, reading):
        found.close()
        found.close()
        found.begin()

    assert threading.enumerate() == threads


@pytest.mark.parametrize(
    ("batches", "new"),
    [
        ([("a", 1), ("a", 1), ("a", 2), ("a", 2)], [1, 0, 1, 0]),
        ([("a", 1), ("b", 1), ("a", 2), ("b", 1)], [1, 1, 1, 0]),
        ([("", 1), ("", 1)], [1, 1]),
    ],
)
def test_a_batch_that_was_stored_twice_is_taken_once(batches: list[tuple[str, int]], new: list[int]) -> None:
    once = BatchFilter()

    assert [once.is_new(batch(source=source, number=number)) for source, number in batches] == [bool(n) for n in new]


def test_reading_once_ends_with_what_there_is(any_settings: Settings) -> None:
    kept, seen = Kept(), list[tuple[int, int]]()
    with Client(any_settings) as client:
        write(client, [ended("a")], source="w")
        write(client, [ended("a")], [ended("b")], source="w")

        read_to_end(client, [kept], progress=lambda swept: seen.append((swept.seen, swept.total)))

        assert kept.ids == ["a", "b"]
        assert all(0 < seen <= total for seen, total in seen)
        kept.broken = True
        with pytest.raises(StoreInvalid):
            read_to_end(client, [kept])
    with Client(Settings(url="amqp://127.0.0.1:1/", publish_timeout=0.2)) as away, pytest.raises(BrokerUnavailable):
        read_to_end(away, [kept])


@pytest.fixture
def client(any_settings: Settings) -> Iterator[Client]:
    with Client(any_settings) as client:
        yield client


@pytest.fixture(autouse=True)
def few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "_FIRST_BATCHES", 2)
    monkeypatch.setattr(listings, "_TIMES_MORE", 2)


def page(client: Client, filter: JobFilter | None = None, *, offset: int = 0, limit: int) -> list[str]:
    found = Inspector(client).history.list(filter or JobFilter(), offset=offset, limit=limit)
    return [row["id"] for row in found.rows]


def test_pages_of_history_are_the_same_however_the_journal_is_read(client: Client) -> None:
    write(client, *([ended(f"j-{n}-{m}", at=NOON + n) for m in range(3)] for n in range(12)))
    newest = [f"j-{n}-{m}" for n in reversed(range(12)) for m in reversed(range(3))]

    for offset in (0, 1, 5, 6, 7, 17, 33, 40):
        assert page(client, offset=offset, limit=5) == newest[offset : offset + 5]
    assert page(client, limit=100) == newest


def test_only_a_page_that_reaches_the_start_has_a_total(client: Client) -> None:
    empty = Inspector(client).history.list(limit=5)
    assert (empty.rows, empty.total) == ([], 0)

    for _ in range(2):  # stored twice, listed once
        write(client, *([ended(f"j-{n}")] for n in range(20)), source="one life")

    assert Inspector(client).history.list(limit=2).total is None
    assert Inspector(client).history.list(limit=21).total == 20
    assert Inspector(client).history.list(JobFilter(since=NOON), limit=2).total == 20


def test_one_job_is_found_however_far_back_it_is(client: Client) -> None:
    rare = {"job": "shop.rare"}
    write(client, [enqueued("rare", **rare)], [failed("rare", **rare)], *([ended(f"j-{n}")] for n in range(30)))
    write(client, [ended("zwölf")], [ended("rare", **rare)] * 1_001)

    assert page(client, JobFilter(job="shop.rare", state="failed"), limit=1) == ["rare"]
    assert page(client, JobFilter(job="shop.none"), limit=1) == []
    assert [row["kind"] for row in Inspector(client).history.timeline("rare")][:2] == ["enqueued", "failed"]
    assert [row["kind"] for row in Inspector(client).history.timeline("zwölf")] == ["succeeded"]
