"""The pages of scheduled and of retrying jobs, as a reader without JavaScript uses them, on each broker."""

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from html import unescape
from typing import Any

import httpx
import pytest

from palermo.brokers.rabbitmq.amqp.messages import Got
from palermo.brokers.rabbitmq.scheduling.scheduled_listing import ScheduledListing
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.election import Duty
from palermo.core.time_slots import TimeSlot
from palermo.inspector import scheduled as scheduled_jobs
from palermo.settings.settings import Settings
from palermo.webui.state import scheduled_view as scheduled_views
from palermo.webui.state.scheduled_view import scheduled_view
from tests.helpers import Stopwatch, eventually
from tests.history.written import ended, write
from tests.inspector.jobs import failure, message, publish_failed
from tests.webui.conftest import BROKER_PATIENCE, Serve
from tests.webui.scheduled_jobs import DAY, due, retrying, schedule
from tests.webui.server import Web

XSS = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


def text_of(answer: httpx.Response) -> str:
    """What a page says, without markup and as one line."""
    return " ".join(re.sub(r"<[^>]+>", " ", answer.text).replace("&#39;", "'").replace("&#34;", '"').split())


def shown(web: Web, path: str) -> str:
    answer = web.http.get(path)
    assert answer.status_code == 200, answer.text
    return text_of(answer)


def listed(web: Web, path: str) -> list[str]:
    """The ids of the rows of a page, in order."""
    return re.findall(r'<tr id="row-([^"]+)"', web.http.get(path).text)


def confirmed(web: Web, path: str, **typed: str) -> httpx.Response:
    """What follows when what this page asks is confirmed."""
    page = web.http.get(path).text
    form = page[page.index('<dialog id="confirm"') :].partition("</dialog>")[0]
    fields: dict[str, Any] = {}
    for name, value in re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form):
        fields.setdefault(name, []).append(value.replace("&amp;", "&"))
    action = unescape(re.findall(r'action="([^"]+)"', form)[0])
    return web.http.post(action, data={**fields, **typed}, follow_redirects=True)


def test_a_page_past_the_end_leads_to_the_last_one(web: Web) -> None:
    publish_failed(web.client, (message("1"), failure()))
    schedule(web.client, retrying("again", 400))
    web.client.enqueue("shop.mail", ["a@b.c"], queue="mail")

    def past_end(path: str) -> bool:
        page = web.http.get(path).text
        return "Page 9 is past the end: there is 1 " in page and 'page=1">Page 1</a>' in page

    for path in ("/scheduled", "/retries", "/queues/mail", "/failures", "/failures?by=groups"):
        eventually(lambda path=path: past_end(f"{path}{'&' if '?' in path else '?'}page=9"))  # type: ignore[misc]
        assert "is past the end" not in web.http.get(path).text, path


def test_all_that_match_are_cancelled_and_the_filter_stays(web: Web) -> None:
    schedule(web.client, *(due(f"{n}", 100 + n, queue="slow" if n % 2 else "mail") for n in range(6)))

    asked = "/scheduled/confirm?act=cancel&all=1&queue=slow"
    assert "Cancel 3 scheduled jobs?" in shown(web, asked)
    assert "Chosen by queue “slow”." in shown(web, asked)
    done = confirmed(web, asked)

    assert done.url.query == b"queue=slow"
    assert "Cancelled 3 jobs." in done.text
    assert [row["id"] for row in web.inspector.scheduled()] == ["0", "2", "4"]


def test_the_question_says_how_many_of_the_jobs_are_retries(web: Web) -> None:
    schedule(web.client, due("a", 100), due("b", 200), retrying("again", 300), retrying("slow", 400, queue="slow"))

    for asked, title in {
        "cancel&all=1": "Cancel 4 scheduled jobs (2 of them retries of failed jobs)?",
        "move&id=a&id=b&id=again": "Move 3 scheduled jobs (1 of them a retry of a failed job)?",
        "run&id=again&id=slow": "Run 2 scheduled jobs (all of them retries of failed jobs) now?",
        "cancel&id=again": "Cancel 1 scheduled job (a retry of a failed job)?",
        "cancel&all=1&queue=slow": "Cancel 1 scheduled job (a retry of a failed job)?",
        "cancel&all=1&retries=no": "Cancel 2 scheduled jobs?",
        "cancel&id=a&id=b": "Cancel 2 scheduled jobs?",
    }.items():
        assert title in shown(web, f"/scheduled/confirm?act={asked}"), asked
    assert "Cancel 2 retrying jobs?" in shown(web, "/retries/confirm?act=cancel&all=1")
    rows = web.http.get("/scheduled").text.split('<tr id="row-')[1:]
    assert ["retrying" in row for row in rows] == [False, False, True, True]


def test_who_comes_too_late_is_told_so(web: Web) -> None:
    schedule(web.client, due("a", 100), due("b", 100))
    web.inspector.run_now("a")

    one = web.form("/scheduled", "/scheduled/act", act="cancel", id="a")
    several = web.form("/scheduled", "/scheduled/act", act="cancel", id=["a", "b"])  # type: ignore[arg-type]

    assert "Too late: job a has come due already, or was not there. Nothing was changed." in one.text
    assert "Cancelled 1 job; 1 had come due already, or was not there." in several.text


@pytest.mark.parametrize("when", ["", "tomorrow", "2030-01-01T00:00", "-5m", "9999999d"])
def test_a_time_that_is_none_is_asked_for_again(shared_web: Web, when: str) -> None:
    schedule(shared_web.client, due("a", 100))

    again = confirmed(shared_web, "/scheduled/confirm?act=move&id=a", when=when)

    assert again.status_code == 422
    assert 'role="alert"' in again.text
    assert 'name="when"' in again.text
    shared_web.inspector.cancel_scheduled("a")


@pytest.mark.parametrize(
    "fields",
    [
        {"act": "cancel"},
        {"act": "cancel", "filter": "queue=mail"},
        {"act": "cancel", "filter": "alligator"},
        {"act": "cancel", "filter": "all&quee=mail"},
        {"act": "cancel", "filter": "all&queue="},
        {"act": "cancel", "filter": "all&retries=true"},
        {"act": "give up", "id": "a"},
        {"act": "drop", "id": "a"},
        {"act": "cancel", "filter": "all&", "number": "1001", "typed": "1000"},
    ],
)
def test_a_form_that_does_not_say_what_is_meant_does_nothing(shared_web: Web, fields: dict[str, str]) -> None:
    schedule(shared_web.client, due("a", 100))

    assert shared_web.form("/scheduled", "/scheduled/act", **fields).status_code == 422
    assert len(shared_web.inspector.cancel_scheduled(["a"])) == 1


def test_retries_are_retried_now_or_given_up(web: Web) -> None:
    schedule(web.client, *(retrying(str(n), 100 + n) for n in range(4)), due("plain", 100))

    assert "Enqueued 1 job." in web.form("/retries", "/retries/act", act="retry", id="0").text
    assert "Gave up 1 job." in confirmed(web, "/retries/confirm?act=give up&id=1").text
    assert "Give up 2 jobs?" in shown(web, "/retries/confirm?act=give+up&all=1")
    assert "Gave up 2 jobs." in confirmed(web, "/retries/confirm?act=give+up&all=1").text

    assert [row["id"] for row in web.inspector.scheduled()] == ["plain"]
    assert [row["id"] for row in web.inspector.failed()] == ["1", "2", "3"]
    assert "Nothing was changed" in web.form("/scheduled", "/retries/act", act="cancel", id="plain").text
    assert web.form("/scheduled", "/retries/act", act="run", id="plain").status_code == 422
    assert [row["id"] for row in web.inspector.scheduled()] == ["plain"]


def test_a_job_that_is_due_is_changed_on_its_own_page(web: Web) -> None:
    schedule(web.client, due("a", 100), due("b", 100), retrying("c", 100), due("d", 100))

    assert "Moved 1 job." in web.form("/jobs/a", "/jobs/a/due/move", when="5d", queue="mail").text
    assert "Cancelled 1 job." in web.form("/jobs/b", "/jobs/b/due/cancel").text
    given_up = web.form("/jobs/c", "/jobs/c/due/give%20up")
    assert "Gave up 1 job." in given_up.text
    assert 'badge bad">failed' in given_up.text
    assert "Enqueued 1 job." in web.form("/jobs/d", "/jobs/d/due/run").text
    assert "Too late: job d has come due already" in web.form("/jobs/a", "/jobs/d/due/cancel").text


def test_a_page_is_told_of_what_changed_between_its_drawing_and_its_stream(web: Web) -> None:
    schedule(web.client, due("a", 100))
    page = web.http.get("/scheduled?queue=mail").text
    address = unescape(page.partition('data-events="')[2].partition('"')[0])
    assert address == "/live?of=scheduled&queue=mail&job=&due_from=&due_until=&retries=&page=1"

    schedule(web.client, due("b", 100))

    with web.http.stream("GET", address, timeout=60) as stream:
        events = (line for line in stream.iter_lines() if line.startswith("event:"))
        assert next(events) == "event: hello"
        assert next(events) == "event: change"


def test_a_look_is_shown_again_for_as_long_as_it_cost(web: Web) -> None:
    schedule(web.client, due("a", 100))
    page = scheduled_view(web.app.state.site)
    began, watch = time.monotonic(), Stopwatch()
    assert page.page(_all()).total == 1

    schedule(web.client, due("b", 100))
    while page.page(_all()).total == 1:
        assert watch.seconds() < 100
    assert time.monotonic() - began >= 0.5


@pytest.mark.parametrize("beside_a_leader", [False, True])
def test_the_first_look_says_how_far_it_is_and_shows_the_list_afterwards(
    rabbitmq_url: str, exchange: str, serve: Serve, monkeypatch: pytest.MonkeyPatch, beside_a_leader: bool
) -> None:
    web = serve(Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=BROKER_PATIENCE))
    # In one time slot, which is a day there: two slots are read one after the other, in no order.
    noon = (time.time() // DAY + 3.5) * DAY - time.time()
    schedule(web.client, *(due(f"{n}", noon) for n in range(250)), retrying("again", noon))
    monkeypatch.setattr(scheduled_views, "_PATIENCE", 0.001)
    read, go_on = ScheduledListing._read, threading.Event()

    async def stops_midway(listing: ScheduledListing, time_slot: TimeSlot) -> AsyncIterator[Got]:
        number = 0
        async for got in read(listing, time_slot):
            yield got
            number += 1
            while number == 200 and not go_on.is_set():  # noqa: ASYNC110 - a thread sets it
                await asyncio.sleep(0.01)

    monkeypatch.setattr(ScheduledListing, "_read", stops_midway)
    with leading(web) if beside_a_leader else contextlib.nullcontext():
        try:
            for path in ("/retries", "/scheduled?queue=mail"):
                eventually(lambda path=path: "200 of 251" in shown(web, path))  # type: ignore[misc]
                assert 'max="251" value="200"' in web.http.get(path).text
            assert web.http.get("/queues").status_code == 200
        finally:
            go_on.set()
        eventually(lambda: listed(web, "/retries") == ["again"])


@contextlib.contextmanager
def leading(web: Web) -> Iterator[None]:
    """A session of this process that leads, as a worker's does."""

    async def begin(broker: Broker) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(broker.run_scheduler())
        while Duty.TIME not in broker.duties:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        return task

    async def end(task: "asyncio.Task[None]") -> None:
        task.cancel()
        await asyncio.wait([task])

    with contextlib.closing(Client(web.client.settings)) as client:
        task = client.run(begin)
        yield
        client.run(lambda _: end(task))


def test_a_page_shows_the_list_before_while_a_new_one_takes_long(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule(web.client, due("a", 100))
    assert listed(web, "/scheduled") == ["a"]
    schedule(web.client, due("b", 200))
    monkeypatch.setattr(scheduled_views, "_NEWER", 0.0)
    go_on, read = threading.Event(), scheduled_views.listed

    def slow(*given: Any, **more: Any) -> Any:
        go_on.wait(60)
        return read(*given, **more)

    monkeypatch.setattr(scheduled_views, "listed", slow)
    try:
        eventually(lambda: listed(web, "/scheduled") == ["a"] and scheduled_view(web.app.state.site)._running == 1)
    finally:
        go_on.set()
    eventually(lambda: listed(web, "/scheduled") == ["a", "b"])


def _all() -> Any:
    from palermo.contract.scheduled import ScheduledFilter

    return ScheduledFilter()


def test_jobs_of_a_stretch_of_time_are_listed_and_moved_by_a_delay(web: Web) -> None:
    now = time.time()
    schedule(web.client, *(due(f"job-{nth}", nth * 3_600 + 600) for nth in range(4)), retrying("again", 4_300))

    asked = "due_from=1h&due_until=3h"
    assert listed(web, f"/scheduled?{asked}") == ["job-1", "again", "job-2"]
    assert listed(web, f"/retries?{asked}") == ["again"]
    answer = confirmed(web, f"/scheduled/confirm?act=move&all=1&retries=no&{asked}", when="+1h30m")

    assert "Moved 2 jobs." in answer.text
    hours = {row["id"]: (datetime.fromisoformat(row["run_at"]).timestamp() - now) / 3_600 for row in scheduled(web)}
    assert {id: round(hour, 1) for id, hour in hours.items()} == {
        "job-0": 0.2,
        "job-1": 2.7,
        "job-2": 3.7,
        "job-3": 3.2,
        "again": 1.2,
    }
    answer = confirmed(web, "/scheduled/confirm?act=move&id=job-0&id=gone", when="+1h")
    assert "Moved 1 job; 1 had come due already, or was not there." in text_of(answer)
    assert "is no delay such as +1h" in text_of(confirmed(web, "/scheduled/confirm?act=move&id=job-0", when="+x"))
    assert web.http.get("/scheduled?due_from=tomorrow").status_code == 422


def test_a_delay_for_jobs_of_too_many_times_is_refused(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduled_jobs, "MAX_TIMES", 2)
    schedule(web.client, *(due(f"job-{nth}", nth * 60 + 600) for nth in range(3)))

    answer = confirmed(web, "/scheduled/confirm?act=move&all=1", when="+1h")

    assert "these jobs are due at 3 different times, and a delay moves at most 2" in text_of(answer)


def scheduled(web: Web) -> list[dict[str, Any]]:
    return web.inspector.scheduled().rows


def test_the_page_of_a_job_that_is_over_reads_no_scheduled_jobs(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    write(web.client, [ended("over")])
    schedule(web.client, due("later", 900))
    eventually(lambda: web.http.get("/api/history/over").status_code == 200)
    looked: list[frozenset[str] | None] = []
    listed = scheduled_views.listed

    def counted(context: Any, chosen: ScheduledFilter, **page: int) -> Any:
        looked.append(chosen.ids)
        return listed(context, chosen, **page)

    monkeypatch.setattr(scheduled_views, "listed", counted)

    assert web.http.get("/jobs/over").status_code == 200
    assert frozenset({"over"}) not in looked
    assert web.http.get("/jobs/later").status_code == 200
    assert frozenset({"later"}) in looked
