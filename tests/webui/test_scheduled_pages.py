"""Scheduled and retrying jobs in the API, and on their pages as a reader without JavaScript uses them."""

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from palermo.brokers.rabbitmq.amqp.messages import Got
from palermo.brokers.rabbitmq.scheduling.scheduled_jobs import ScheduledJobs as RabbitmqScheduledJobs
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.core.election import Duty
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


def listed(web: Web, path: str) -> list[str]:
    """The ids of the rows of a page, in order."""
    return re.findall(r'<tr id="row-([^"]+)"', web.http.get(path).text)


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


def test_a_delay_moves_jobs_of_only_so_many_times(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule(web.client, *(due(f"{nth}", 600 + nth) for nth in range(3)))
    monkeypatch.setattr(scheduled_jobs, "MAX_TIMES", 2)

    refused = confirmed(web, "/scheduled/confirm?act=move&all=1", when="+1h")

    assert "these jobs are due at 3 different times, but a delay can only be added to 2 of them" in text_of(refused)


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


@pytest.mark.slow
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
