"""The newest page of history: it is read from the end of the journal back, on each broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.client.client import Client
from palermo.history import listings
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from palermo.views.filter import JobFilter
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
    write(client, [ended("zwölf")], [ended("rare", **rare)])

    assert page(client, JobFilter(job="shop.rare", state="failed"), limit=1) == ["rare"]
    assert page(client, JobFilter(job="shop.none"), limit=1) == []
    assert [row["kind"] for row in Inspector(client).history.timeline("rare")] == ["enqueued", "failed", "succeeded"]
    assert [row["kind"] for row in Inspector(client).history.timeline("zwölf")] == ["succeeded"]
