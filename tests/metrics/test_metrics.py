"""The totals of a worker, the text that parsers of scrapers read, and the small server that hands it out."""

import asyncio
import contextlib
import gzip
import itertools
import socket
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from palermo.core.durations import bucket, upper
from palermo.core.journal_records import RUN_ENDS, RecordBatch, RecordKind
from palermo.history.series import Tally
from palermo.metrics.catalogue import WEB
from palermo.metrics.endpoint import Endpoint, _Handler
from palermo.metrics.exposition import BOUNDS, Families, buckets, expose
from palermo.metrics.totals import OTHER, JournalTotals, Names, Totals, label
from tests.metrics.scraping import Scraped


def counts(queue: str = "mail", job: str = "send", **numbers: Any) -> dict[str, Any]:
    return {"kind": RecordKind.COUNTS, "at": 1.0, "queue": queue, "job": job, **numbers}


def batch(number: int, *records: dict[str, Any], source: str = "a") -> RecordBatch:
    return RecordBatch(position=number, writer="w", records=records, source=source, number=number)


class Reading:
    """A taker, and whether what the journal held before has been read."""

    def __init__(self, *, ready: bool = False) -> None:
        self.ready = ready
        self.taker = JournalTotals(lambda: self.ready)

    def numbers(self) -> dict[tuple[str, str], dict[str, int]]:
        return {pair: dict(tally.numbers) for pair, tally in self.taker.copy().items()}


def test_runs_add_up_by_queue_and_job_and_a_copy_stays_as_it_is() -> None:
    totals = Totals()
    for took in (0.1, 0.3):
        totals.count(RecordKind.SUCCEEDED, "mail", "send", 1.0, took)
    totals.count(RecordKind.FAILED, "mail", "send", None, None)
    totals.count(RecordKind.CANCELLED, "slow", "send", None, None)

    found = totals.copy()
    totals.count(RecordKind.SUCCEEDED, "mail", "send", 1.0, 1.0)

    assert dict(found["mail", "send"].numbers) == {"succeeded": 2, "failed": 1}
    assert (found["mail", "send"].run.count, found["mail", "send"].wait.sum) == (2, 2.0)
    assert found["mail", "send"].run.sum == pytest.approx(0.4)
    assert dict(found["slow", "send"].numbers) == {"cancelled": 1}


def test_names_take_bounded_room_and_are_labels_that_can_be_written() -> None:
    totals = Totals(most=10)
    for number in range(1_000):
        totals.count(RecordKind.FAILED, "mail", f"job-{number}", None, None)
    totals.count(RecordKind.FAILED, "mail", "job-3", None, None)

    found = totals.copy()

    assert len(found) == 11
    assert found[OTHER, OTHER].numbers["failed"] == 990
    assert found["mail", "job-3"].numbers["failed"] == 2
    assert label("x" * 10_000) == "x" * 200
    assert label("a\udc80b") == "a?b"
    names = Names(2)
    assert [names.of(name) for name in ("a", "b", "c", "a", "d")] == ["a", "b", OTHER, "a", OTHER]


def test_what_the_journal_held_before_gives_names_and_no_numbers() -> None:
    reading = Reading()
    reading.taker.take(batch(1, counts(succeeded=5, run={"10": 5})))
    reading.ready = True
    reading.taker.take(batch(2, counts(succeeded=2), {"kind": RecordKind.LOST, "at": 1.0, "count": 7}))

    assert reading.numbers() == {("mail", "send"): {"succeeded": 2}}
    assert reading.taker.copy()["mail", "send"].run.count == 0
    assert reading.taker.lost == 7


def test_a_batch_that_is_stored_or_read_twice_counts_once() -> None:
    reading = Reading(ready=True)
    batches = [batch(number, counts(failed=1)) for number in (1, 2, 2, 3)]
    batches += [batch(1, counts(failed=1), source="b")]
    for each in batches:
        reading.taker.take(each)
    reading.taker.reset()
    reading.ready = False
    for each in batches:
        reading.taker.take(each)
    reading.taker.take(batch(4, counts(failed=1)))

    assert reading.numbers() == {("mail", "send"): {"failed": 5}}


def test_what_is_no_number_counts_nothing() -> None:
    reading = Reading(ready=True)
    odd = counts(succeeded="many", failed=-3, run="long", wait=7), counts(queue=7)  # type: ignore[arg-type]
    lost = {"kind": RecordKind.LOST, "at": 1.0, "count": "some"}

    reading.taker.take(batch(1, *odd, {"kind": "unheard of", "at": 1.0}, lost))

    assert not any(reading.numbers().values())
    assert reading.taker.lost == 0


def test_threads_that_count_at_once_lose_nothing() -> None:
    totals = Totals()

    def count(_: int) -> None:
        for _ in range(2_000):
            totals.count(RecordKind.SUCCEEDED, "mail", "send", 0.1, 0.1)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count, range(4)))

    assert totals.copy()["mail", "send"].numbers["succeeded"] == 8_000


def families() -> Families:
    totals = Totals()
    totals.count(RecordKind.SUCCEEDED, 'a "quoted"\\queue\n', "send", 0.5, 0.002)
    totals.count(RecordKind.SUCCEEDED, 'a "quoted"\\queue\n', "send", 0.5, 5_000.0)
    totals.count(RecordKind.RETRIED, "mail", "send", None, 1.0)
    made = Families(WEB)
    made.info("palermo_info", version="1.2.3")
    made.set("palermo_queue_pending_jobs", 7, "mail")
    made.tallies({**totals.copy(), ("idle", "never"): Tally()}, prefix="palermo_")
    return made


def test_values_and_names_survive_the_format() -> None:
    body, headers = expose(families())
    found = Scraped(body.decode())

    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    assert found.value("palermo_info", version="1.2.3") == 1
    assert found.value("palermo_queue_pending_jobs", queue="mail") == 7
    quoted = {"queue": 'a "quoted"\\queue\n', "job_name": "send"}
    assert found.value("palermo_jobs_processed_total", outcome="succeeded", **quoted) == 2
    assert found.value("palermo_job_run_seconds_bucket", le="0.0032", **quoted) == 1
    assert found.value("palermo_job_run_seconds_bucket", le=BOUNDS[-1], **quoted) == 1
    assert found.value("palermo_job_run_seconds_bucket", le="+Inf", **quoted) == 2
    assert found.value("palermo_job_run_seconds_sum", **quoted) == 5_000.002
    assert found.value("palermo_job_wait_seconds_count", queue=quoted["queue"]) == 2
    for outcome in RUN_ENDS:  # also of a job that is known and has not run yet
        assert found.value("palermo_jobs_processed_total", queue="idle", job_name="never", outcome=str(outcome)) == 0


def test_it_is_openmetrics_or_compressed_where_that_is_asked_for() -> None:
    body, headers = expose(families(), accept="application/openmetrics-text; version=1.0.0")
    compressed, encoded = expose(families(), encoding="gzip, deflate")

    assert headers["content-type"].startswith("application/openmetrics-text")
    told = {family.name for family in openmetrics.text_string_to_metric_families(body.decode())}
    assert told >= {"palermo_jobs_processed", "palermo_job_run_seconds"}
    assert encoded["content-encoding"] == "gzip"
    assert list(text_string_to_metric_families(gzip.decompress(compressed).decode()))


@pytest.mark.parametrize("seconds", [0.0, 0.0001, 0.0032, 0.003_201, 0.0064, 1.0, 1.6384, 1.64, 3_355.0, 1e9])
def test_a_duration_is_in_every_bucket_whose_bound_it_does_not_exceed(seconds: float) -> None:
    found = buckets({bucket(seconds): 1})

    assert [float(bound) for bound, count in found if count] == [
        float(bound) for bound in (*BOUNDS, "+Inf") if float(bound) >= seconds * (1 - 1e-9)
    ]
    # Bounds double, and are ends of the journal's own buckets.
    bounds = [float(bound) for bound in BOUNDS]
    assert all(later == pytest.approx(2 * earlier) for earlier, later in itertools.pairwise(bounds))
    assert all(upper(bucket(bound)) == pytest.approx(bound) for bound in bounds)


TOKEN = "a-token-for-prometheus"


class Page(Collector):
    """One metric; or the error of another collector."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def collect(self) -> Iterable[Metric]:
        if self._error is not None:
            raise self._error
        return [GaugeMetricFamily("shown", "A number.", 7)]


@contextlib.asynccontextmanager
async def serving(page: Page | None = None, token: str = "") -> AsyncIterator[int]:
    at = socket.create_server(("127.0.0.1", 0))
    port: int = at.getsockname()[1]
    registry = CollectorRegistry()
    registry.register(page or Page())
    endpoint = Endpoint(at, registry, token=token)
    endpoint.serve(asyncio.get_running_loop())
    try:
        yield port
    finally:
        endpoint.close(asyncio.get_running_loop())


async def ask(port: int, request: str) -> tuple[str, str]:
    """The head of the answer, and its body; "" if the connection just ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    try:
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    except ConnectionError:
        head, body = "", ""
    finally:
        writer.close()
    return head, body


#: With a token and without one: what is asked, and how the answer begins and what it says.
REQUESTS = {
    "": [
        ("GET /metrics HTTP/1.1", "200 OK", "shown 7.0"),
        ("GET /metrics?name[]=x HTTP/1.0", "200 OK", "shown 7.0"),
        ("POST /metrics HTTP/1.1", "405 Method Not Allowed", "use OPTIONS or GET"),
        ("GET / HTTP/1.1", "404 Not Found", "The metrics are at /metrics."),
    ],
    TOKEN: [
        (f"GET /metrics HTTP/1.1\nAuthorization: Bearer {TOKEN}", "200", "shown"),
        (f"GET /metrics HTTP/1.1\nauthorization: bearer {TOKEN}", "200", "shown"),
        ("GET /metrics HTTP/1.1\nAuthorization: Bearer another", "401", ""),
        (f"GET /metrics HTTP/1.1\nAuthorization: Basic {TOKEN}", "401", ""),
        ("GET /metrics HTTP/1.1\nAuthorization: Bearer \u00fc", "401", ""),
        ("GET /metrics HTTP/1.1\nAccept: */*", "401", ""),
    ],
}


@pytest.mark.parametrize("token", REQUESTS)
async def test_one_page_is_served_and_a_token_asked_for_where_there_is_one(token: str) -> None:
    async with serving(token=token) as port:
        for request, status, body in REQUESTS[token]:
            head, found = await ask(port, request)
            assert head.partition(" ")[2].startswith(status), request
            assert body in found


@pytest.mark.slow
async def test_silent_clients_keep_others_out_only_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "timeout", 3.0)
    async with serving() as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        assert await ask(port, "GET /metrics HTTP/1.1") == ("", "")
        await asyncio.gather(*(reader.read() for reader, _ in silent), return_exceptions=True)
        served = ""
        while not served:  # the last thread may end a moment later
            served, _ = await ask(port, "GET /metrics HTTP/1.1")
        for _, writer in silent:
            writer.close()

    assert served.split()[1] == "200"


async def test_a_request_too_long_and_an_error_of_our_own_end_one_request() -> None:
    async with serving(Page(RuntimeError("no"))) as port:
        assert (await ask(port, "GET /metrics HTTP/1.1"))[0].split()[1] == "500"
        assert "200" not in (await ask(port, f"GET /metrics HTTP/1.1\nX: {'x' * 100_000}"))[0]
