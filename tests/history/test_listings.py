"""The newest page of history: it is read from the end of the journal back, on each broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.history import listings
from palermo.history.filters import HistoryFilter
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.brokers import BROKERS, url_of_broker
from tests.history.written import NOON, ended, enqueued, failed, write


@pytest.fixture(params=BROKERS)
def client(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> Iterator[Client]:
    client = Client(Settings(url=url_of_broker(request, tmp_path), exchange=exchange, publish_timeout=30))
    yield client
    client.close()


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listings, "_FIRST_PORTION", 2)
    monkeypatch.setattr(listings, "_TIMES_MORE", 2)


def page(client: Client, filter: HistoryFilter | None = None, *, offset: int = 0, limit: int) -> list[str]:
    found = Inspector(client).history(filter or HistoryFilter(), offset=offset, limit=limit)
    return [row["id"] for row in found.rows]


def test_pages_of_history_are_the_same_however_the_journal_is_read(client: Client) -> None:
    write(client, *([ended(f"j-{n}-{m}", at=NOON + n) for m in range(3)] for n in range(12)))
    newest = [f"j-{n}-{m}" for n in reversed(range(12)) for m in reversed(range(3))]

    for offset in (0, 1, 5, 6, 7, 17, 33, 40):
        assert page(client, offset=offset, limit=5) == newest[offset : offset + 5]
    assert page(client, limit=100) == newest


def test_only_a_page_that_reaches_the_start_has_a_total(client: Client) -> None:
    write(client, *([ended(f"j-{n}")] for n in range(20)))

    assert Inspector(client).history(limit=2).total is None
    assert Inspector(client).history(limit=21).total == 20
    assert Inspector(client).history(HistoryFilter(since=NOON), limit=2).total == 20


def test_a_rare_job_is_found_however_far_back_it_is(client: Client) -> None:
    write(client, [failed("rare", job="shop.rare")], *([ended(f"j-{n}")] for n in range(30)))

    assert page(client, HistoryFilter(job="shop.rare"), limit=1) == ["rare"]
    assert page(client, HistoryFilter(job="shop.none"), limit=1) == []


def test_a_batch_that_was_stored_twice_is_listed_once(client: Client) -> None:
    for _ in range(2):
        write(client, [ended("a")], [ended("b")], [ended("c")], source="one life")

    assert sorted(page(client, limit=10)) == ["a", "b", "c"]


def test_before_anything_is_written_history_is_empty(client: Client) -> None:
    found = Inspector(client).history(limit=5)

    assert (found.rows, found.total) == ([], 0)


def test_all_that_is_told_of_one_job_is_found_among_many(client: Client) -> None:
    write(client, [enqueued("wanted")], *([ended(f"j-{n}")] for n in range(10)), [ended("zwölf")], [ended("wanted")])

    assert [row["kind"] for row in Inspector(client).life("wanted")] == ["enqueued", "succeeded"]
    assert [row["kind"] for row in Inspector(client).life("zwölf")] == ["succeeded"]
