"""Scheduled and retrying jobs in the API, and on their pages as a reader without JavaScript uses them."""

import asyncio
import contextlib
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp.messages import Got
from palermo.brokers.rabbitmq.scheduling.scheduled_jobs import ScheduledJobs as RabbitmqScheduledJobs
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.core.election import Duty
from palermo.core.times import parse_instant
from palermo.core.topology import FAILED_QUEUE
from palermo.inspector import scheduled as scheduled_jobs
from palermo.inspector.scheduled import ScheduledJobs
from palermo.settings.settings import Settings
from palermo.views.filter import JobFilter
from palermo.webui import tuning
from palermo.webui.failed.operations import operations
from palermo.webui.state.scheduled_view import scheduled_view
from tests.helpers import HANGS, Stopwatch, eventually
from tests.webui.conftest import BROKER_PATIENCE, Serve
from tests.webui.scheduled_jobs import DAY, due, retrying, schedule
from tests.webui.server import Web, text_of

GONE = "not_found"

#: Unix seconds of 2030-01-01T00:00Z.
YEAR = 1_893_456_000.0


def listed(web: Web, path: str) -> list[str]:
    """The ids of the rows of a page, in order."""
    return re.findall(r'<tr id="row-([^"]+)"', web.http.get(path).text)


def told(web: Web, path: str, body: Any = None) -> dict[str, str]:
    """What the answer of the API says of each id."""
    answer = web.http.post(f"/api/{path}", json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return {row["id"]: row["state"] for row in found.get("rows", [found])}


def confirmed(web: Web, path: str, **typed: str) -> httpx.Response:
    """What follows when what this page asks is confirmed."""
    return web.press(web.http.get(path), path.partition("/confirm")[0] + "/act", **typed)


@contextlib.contextmanager
def leading(web: Web) -> Iterator[None]:
    """A session of this process that leads, as a worker's does."""

    async def begin(broker: Broker) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(broker.run_scheduler())
        while Duty.MAIN not in broker.duties:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        return task

    async def end(task: "asyncio.Task[None]") -> None:
        task.cancel()
        await asyncio.wait([task])

    with contextlib.closing(Client(web.client.settings)) as client:
        task = client.run(begin)
        yield
        client.run(lambda _: end(task))


# -- the API


def test_each_answer_says_what_happened(web: Web, caplog: pytest.LogCaptureFixture) -> None:
    schedule(web.client, *(due(str(n), 100 + n) for n in range(6)), retrying("r", 100), due("s", 100, queue="slow"))

    assert web.ids("scheduled", limit=3, page=2) == ["1", "2", "3"]
    assert web.api("scheduled?retries=false&limit=1")["total"] == 7

    with caplog.at_level(logging.INFO, logger="palermo.audit"):
        cancelled = told(web, "scheduled/cancel", {"ids": ["0", "1", "nowhere", "0"]})

    assert cancelled == {"0": "cancelled", "1": "cancelled", "nowhere": GONE}
    assert "cancel scheduled by=local role=admin from=127.0.0.1 of=0, 1, nowhere to=- operation=" in caplog.text
    assert "status=done jobs=2 gone=1 of=0, 1, nowhere" in caplog.text
    assert told(web, "scheduled/0/cancel") == {"0": GONE}
    assert told(web, "scheduled/run", {"ids": ["2"]}) == {"2": "enqueued"}
    assert told(web, "scheduled/3/run") == {"3": "enqueued"}
    assert told(web, "scheduled/3/cancel") == {"3": GONE}
    assert {row["id"] for row in web.inspector.jobs.list("mail")} == {"2", "3"}
    plain = {"filter": {"queue": "mail", "state": "scheduled"}}
    assert told(web, "scheduled/cancel", plain) == {"4": "cancelled", "5": "cancelled"}
    assert told(web, "scheduled/run", {"filter": {}}) == {"r": "enqueued", "s": "enqueued"}
    assert web.ids("scheduled") == []


def test_jobs_are_moved_to_another_time_or_by_a_delay(web: Web) -> None:
    schedule(web.client, *(due(f"job-{hour}", YEAR + hour * 3_600 - time.time()) for hour in range(4)))
    stretch: dict[str, Any] = {"due_from": "2030-01-01T00:30Z", "due_until": "2030-01-01T02:30Z"}

    assert web.ids("scheduled", **stretch) == ["job-1", "job-2"]
    moved = told(web, "scheduled/move", {"filter": stretch, "later": 7_200})

    assert moved == {"job-1": "moved", "job-2": "moved"}
    hours = {row["id"]: round((parse_instant(row["run_at"]) - YEAR) / 3_600) for row in web.api("scheduled")["rows"]}
    assert hours == {"job-0": 0, "job-1": 3, "job-2": 4, "job-3": 3}
    assert told(web, "scheduled/job-0/move", {"later": 5}) == {"job-0": "moved"}
    assert told(web, "scheduled/cancel", {"filter": {"due_until": YEAR + 60}}) == {"job-0": "cancelled"}
    assert web.ids("retries", **stretch) == []
    row = web.http.post("/api/scheduled/job-1/move", json={"at": "2029-01-01T12:00:00+01:00"}).json()
    assert (row["state"], row["run_at"]) == ("moved", "2029-01-01T11:00:00Z")
    assert told(web, "scheduled/move", {"ids": ["job-2"], "delay": 1_000}) == {"job-2": "moved"}
    assert told(web, "scheduled/job-3/move", {"at": time.time() - 5}) == {"job-3": "enqueued"}
    assert web.ids("scheduled") == ["job-2", "job-1"]


def test_only_retries_are_run_or_given_up(settings: Settings, serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    web = serve(replace(settings, failed_per_queue=True))
    schedule(web.client, due("plain", 100), *(retrying(str(n), 100 + n, times=3) for n in range(7)))

    assert told(web, "retries/run", {"filter": {"state": "scheduled"}}) == {}
    assert told(web, "retries/run", {"ids": ["0", "plain"]}) == {"0": "enqueued", "plain": GONE}
    assert told(web, "retries/1/run") == {"1": "enqueued"}
    assert told(web, "retries/2/give-up") == {"2": "failed"}
    assert "Enqueued 1 job." in web.form("/retries", "/retries/act", act="retry", id="3").text
    assert "Gave up 1 job." in confirmed(web, "/retries/confirm?act=give up&id=4").text
    assert "Give up 2 jobs?" in web.shown("/retries/confirm?act=give+up&all=1")
    with caplog.at_level(logging.INFO, logger="palermo.audit"):
        assert told(web, "retries/give-up", {"filter": {"queue": "mail"}}) == {"5": "failed", "6": "failed"}
    assert "status=done jobs=2 gone=0 of=scheduled jobs with queue:mail" in caplog.text
    assert "Nothing was changed" in web.form("/scheduled", "/retries/act", act="cancel", id="plain").text

    assert web.ids("scheduled") == ["plain"]
    assert web.inspector.queues.size(f"{FAILED_QUEUE}:mail") == 4
    failed = {row["id"]: row for row in web.inspector.failed.list()}
    assert sorted(failed) == ["2", "4", "5", "6"]
    assert [one["message"] for one in failed["2"]["attempts"]] == ["try 1", "try 2", "try 3"]
    assert (failed["2"]["retries"], failed["2"]["error"]["message"]) == (2, "try 3")


def test_secrets_are_hidden_here_too(web: Web) -> None:
    body = b'{"args": [1], "kwargs": {"password": "hunter2", "user": "ann"}}'
    schedule(web.client, due("a/b", 100, body=body, arguments="both"), retrying("r", 100, body=body, arguments="both"))
    id = quote("a/b", safe="")

    for path in ("/api/scheduled", f"/api/scheduled/{id}", "/api/retries", "/scheduled", "/retries", f"/jobs/{id}"):
        assert "hunter2" not in web.http.get(path).text, path
    assert web.api(f"scheduled/{id}")["kwargs"]["user"] == "ann"


# -- the pages


def test_the_question_says_how_many_jobs_are_meant(web: Web) -> None:
    schedule(web.client, due("a", 100), due("b", 200), due("slow", 300, queue="slow"), retrying("again", 400))

    for asked, title in {
        "cancel&all=1": "Cancel 3 scheduled jobs?",
        "cancel&all=1&filter=queue:slow": "Cancel 1 scheduled job?",
        "run&id=a&id=b": "Run 2 scheduled jobs now?",
    }.items():
        assert title in web.shown(f"/scheduled/confirm?act={asked}"), asked
    assert "Cancel 1 retrying job?" in web.shown("/retries/confirm?act=cancel&all=1")

    done = confirmed(web, "/scheduled/confirm?act=cancel&all=1&filter=queue:slow")
    assert (done.url.query, "Cancelled 1 job." in done.text) == (b"filter=queue:slow", True)
    assert web.ids("scheduled") == ["a", "b", "again"]


def test_a_job_that_is_due_is_changed_on_its_own_page(web: Web) -> None:
    schedule(web.client, due("a", 100), due("b", 100), retrying("c", 100), due("d", 100))

    assert "Moved 1 job." in web.form("/jobs/a", "/jobs/a/due/move", when="5d", queue="mail").text
    assert "Cancelled 1 job." in web.form("/jobs/b", "/jobs/b/due/cancel").text
    given_up = web.form("/jobs/c", "/jobs/c/due/give%20up")
    assert "Gave up 1 job." in given_up.text
    assert 'badge bad">failed' in given_up.text
    assert "Enqueued 1 job." in web.form("/jobs/d", "/jobs/d/due/run").text
    late = web.form("/jobs/a", "/jobs/d/due/cancel")
    assert "Too late: job d has become due, or doesn't exist. Nothing was changed." in text_of(late)


def test_jobs_of_a_stretch_of_time_are_moved_by_a_delay(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    schedule(web.client, *(due(f"job-{nth}", nth * 3_600 + 600) for nth in range(4)), retrying("again", 4_300))

    moved = confirmed(web, "/scheduled/confirm?act=move&all=1&filter=due_from:1h+due_until:3h", when="+1h30m")
    assert "Moved 2 jobs." in moved.text
    rows = web.inspector.scheduled.list().rows
    hours = {row["id"]: round((datetime.fromisoformat(row["run_at"]).timestamp() - now) / 3_600, 1) for row in rows}
    assert hours == {"job-0": 0.2, "job-1": 2.7, "job-2": 3.7, "job-3": 3.2, "again": 1.2}
    late = confirmed(web, "/scheduled/confirm?act=move&id=job-0&id=gone", when="+1h")
    assert "Moved 1 job. 1 had become due, or didn't exist." in text_of(late)

    monkeypatch.setattr(scheduled_jobs, "MAX_TIMES", 2)
    refused = confirmed(web, "/scheduled/confirm?act=move&all=1", when="+1h")
    assert "these jobs are due at 4 different times, and a delay moves at most 2" in text_of(refused)


# -- how new a list is


def test_a_look_is_shown_again_for_as_long_as_it_cost(web: Web) -> None:
    schedule(web.client, due("a", 100))
    page = scheduled_view(web.app.state.site)
    began, watch = time.monotonic(), Stopwatch()
    assert page.page(JobFilter()).total == 1

    schedule(web.client, due("b", 100))
    while page.page(JobFilter()).total == 1:
        assert watch.seconds() < 100
    assert time.monotonic() - began >= 0.5


@pytest.mark.parametrize("beside_a_leader", [False, True])
def test_the_first_look_says_how_far_it_is_and_shows_the_list_afterwards(
    rabbitmq_url: str, exchange: str, serve: Serve, monkeypatch: pytest.MonkeyPatch, beside_a_leader: bool
) -> None:
    web = serve(Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=BROKER_PATIENCE))
    # In one bucket, which is a day there: two are read one after the other, in no order.
    noon = (time.time() // DAY + 3.5) * DAY - time.time()
    schedule(web.client, *(due(f"{n}", noon) for n in range(250)), retrying("again", noon))
    monkeypatch.setattr(tuning, "PATIENCE", 0.001)
    read, go_on = RabbitmqScheduledJobs._read, threading.Event()

    async def stops_midway(jobs: RabbitmqScheduledJobs, place: str, count: int) -> AsyncIterator[list[Got]]:
        number = 0
        async for some in read(jobs, place, count):
            yield some
            number += len(some)
            while 200 < number < count and not go_on.is_set():  # noqa: ASYNC110 - a thread sets it
                await asyncio.sleep(0.01)

    monkeypatch.setattr(RabbitmqScheduledJobs, "_read", stops_midway)
    with leading(web) if beside_a_leader else contextlib.nullcontext():
        try:
            for path in ("/retries", "/scheduled?filter=queue:mail"):
                # A leader that has just moved jobs leaves a mark, which is counted too.
                eventually(lambda path=path: re.search('max="25[12]" value="22[01]"', web.http.get(path).text))  # type: ignore[misc]
            assert web.http.get("/queues").status_code == 200
        finally:
            go_on.set()
        eventually(lambda: listed(web, "/retries") == ["again"])


def held(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[threading.Event, threading.Event]:
    """Have calls of this method of the scheduled jobs wait: returns what is set at a call, and what lets it go on."""
    begun, go_on, method = threading.Event(), threading.Event(), getattr(ScheduledJobs, name)

    def slow(*given: Any, **more: Any) -> Any:
        begun.set()
        go_on.wait(HANGS)
        return method(*given, **more)

    monkeypatch.setattr(ScheduledJobs, name, slow)
    return begun, go_on


def test_a_slow_command_has_a_page_that_offers_no_stop(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule(web.client, due("a", 100))
    monkeypatch.setattr(tuning, "LONG_WAIT", 1.0)
    begun, go_on = held(monkeypatch, "cancel")
    confirmed(web, "/scheduled/confirm?act=cancel&all=1")
    assert begun.wait(HANGS)
    [command] = operations(web.app.state.site)._all
    shown = web.shown(f"/failures/operations/{command}")
    go_on.set()

    assert ("In progress." in shown, "Stop" in shown) == (True, False)
    eventually(lambda: "Cancelled 1 job." in web.shown(f"/failures/operations/{command}"))


def test_a_page_shows_the_list_before_while_a_new_one_takes_long(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule(web.client, due("a", 100))
    assert listed(web, "/scheduled") == ["a"]
    schedule(web.client, due("b", 200))
    monkeypatch.setattr(tuning, "GLANCE", 0.0)
    begun, go_on = held(monkeypatch, "list")
    try:
        eventually(lambda: listed(web, "/scheduled") == ["a"] and begun.is_set())
    finally:
        go_on.set()
    eventually(lambda: listed(web, "/scheduled") == ["a", "b"])
