"""Waiting for ends of jobs by one subscription, whatever becomes of the journal; and the ends a client remembers."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from palermo.client import journal_watch
from palermo.client.journal_watch import JournalWatch, RecentEnds, is_about, job_records
from palermo.client.session_keeper import SessionKeeper
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.core.journal_records import Record, RecordBatch, encode
from tests.contract.tools import until
from tests.scale import scaled


class Post:
    """A watch as a client has it, and somebody who writes the journal."""

    def __init__(self, watch: JournalWatch, keeper: SessionKeeper, writer: Broker) -> None:
        self.watch = watch
        self.keeper = keeper
        self.writer = writer

    async def write(self, *records: Record) -> None:
        await self.writer.journal.append(encode("pid:1@h", records))

    def wait(self, id: str, *, since: float | None = None, **more: Any) -> "asyncio.Task[Record]":
        begun = time.time() if since is None else since
        return asyncio.ensure_future(self.watch.end(id, more.pop("created", None), begun, **more))

    async def catch_up(self) -> None:
        await until(self.watch._caught_up.is_set, True)


@asynccontextmanager
async def post(session: SessionParameters) -> AsyncIterator[Post]:
    keeper = SessionKeeper(session, asyncio.get_running_loop(), lambda _: None, lambda _: None)
    watch, writer = JournalWatch(keeper), await open_broker(session)
    try:
        yield Post(watch, keeper, writer)
    finally:
        watch._stop()
        await keeper.close()
        await writer.close()


def ended(id: str, kind: str = "succeeded", **more: Any) -> Record:
    return {"kind": kind, "at": time.time(), "id": id, "job": "a", "queue": "jobs", **more}


async def soon(*tasks: "asyncio.Task[Record]") -> list[Record]:
    async with asyncio.timeout(90):
        return list(await asyncio.gather(*tasks))


async def test_any_number_wait_by_one_subscription(any_session: SessionParameters) -> None:
    count = scaled(1_000, 10_000)
    async with post(any_session) as office:
        tasks = [office.wait(f"{number}") for number in range(count)]
        await office.catch_up()
        for start in range(0, count, 500):
            await office.write(*(ended(f"{n}", result=n) for n in range(start, min(count, start + 500))))

        found = await soon(*tasks)

        assert [record["result"] for record in found] == list(range(count))
        assert found[0]["writer"] == "pid:1@h"
        assert office.watch.subscriptions == 1
        assert office.watch._waiters == {}


async def test_what_ended_before_is_known_at_once_and_again(session: SessionParameters) -> None:
    began = time.time()
    async with post(session) as office:
        await office.write(ended("1", result=1), ended("2", "failed"))

        for _ in range(2):
            assert (await soon(office.wait("1", since=began)))[0]["result"] == 1
        assert (await office.watch.find_end("2", None, began) or {})["kind"] == "failed"
        assert await office.watch.find_end("3", None, began) is None
        assert office.watch.subscriptions == 1


async def test_a_failure_before_the_subscription_is_checked(session: SessionParameters) -> None:
    checked: list[str] = []

    async def requeued(known: Record | None, cancelled: bool) -> None:
        checked.append((known or {})["kind"])

    began = time.time()
    async with post(session) as office:
        await office.write(ended("1", "failed"))
        task = office.wait("1", since=began, check=requeued)
        await until(lambda: task.done() or len(checked), 1)
        await office.write(ended("1", result="new"))

        assert (await soon(task))[0].get("result") == "new"
        assert checked == ["failed"]


async def test_a_job_enqueued_under_the_id_of_another_is_not_taken_for_it(session: SessionParameters) -> None:
    async with post(session) as office:
        await office.write(ended("1", result="old", created=100))
        task = office.wait("1", since=0.0, created=200)
        await office.catch_up()
        assert not task.done()

        await office.write(ended("1", result="older", created=100), ended("1", result="new", created=200))

        assert (await soon(task))[0]["result"] == "new"


async def test_what_ended_before_the_subscription_is_found_for_all_who_ask(session: SessionParameters) -> None:
    async with post(session) as office:
        await office.write(*(ended(f"{n}", result=n) for n in range(300)))
        later = office.wait("later", since=time.time() + 100)
        await office.catch_up()
        # By the clock of who asks they are older than what has been read.
        office.watch._ends.since = time.time() + 100

        found = await soon(*(office.wait(f"{n}", since=0.0) for n in range(300)))

        assert [record["result"] for record in found] == list(range(300))
        await office.write(ended("later"))
        await soon(later)


async def test_a_lost_session_is_replaced_and_reading_goes_on_where_it_was(any_session: SessionParameters) -> None:
    async with post(any_session) as office:
        heard: list[Record] = []
        task = office.wait("1", on_record=heard.append)
        await office.catch_up()
        await office.write(ended("1", "log", text="before"))
        await until(lambda: len(heard), 1)

        office.keeper.give_up(await office.watch.session())
        await office.write(ended("1", "log", text="meanwhile"))
        await office.write(ended("1"))

        await soon(task)
        assert [record.get("text") for record in heard] == ["before", "meanwhile", None]


async def test_who_gives_up_leaves_nothing_behind(session: SessionParameters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_watch, "LINGER", 0.05)
    async with post(session) as office:
        task = office.wait("1")
        await office.catch_up()
        task.cancel()

        await until(lambda: office.watch._reading is None, True)
        assert office.watch._waiters == {}

        # The next one begins again, with what was stored in the meantime.
        began = time.time()
        await office.write(ended("2"))
        await soon(office.wait("2", since=began))
        assert office.watch.subscriptions == 2


def recent(id: str, kind: str = "succeeded", **more: Any) -> Record:
    return {"kind": kind, "at": 10.0, "id": id, "job": "a", "queue": "jobs", **more}


def test_what_does_not_fit_is_forgotten_oldest_first() -> None:
    clock = iter(range(100, 200))
    ends = RecentEnds(5.0, now=lambda: float(next(clock)), most=3)
    for number in range(5):
        ends.add(recent(f"{number}"))

    assert [ends.find(f"{number}", None) is not None for number in range(5)] == [False, False, True, True, True]
    assert ends.since == 101.0
    assert ends.full
    ends.add(recent("4", "failed"))
    assert ends.find("4", None) == recent("4", "failed"), "the last end of a job counts"

    large = {"content_type": "application/json", "text": "x" * 300}
    ends = RecentEnds(5.0, most_bytes=1_000)
    for number in range(5):
        ends.add(recent(f"{number}", result=large))
    assert [ends.find(f"{number}", None) is not None for number in range(5)] == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("record", "created", "is_its"),
    [
        (recent("1", created=7), 7, True),
        (recent("1", created=7), 8, False),
        (recent("1", created=7), None, True),
        (recent("1"), 8, True),
        ({**recent("1"), "by_hand": True}, 10, True),
        ({**recent("1"), "by_hand": True}, 11, False),
    ],
)
def test_an_id_may_be_used_again(record: Record, created: int | None, is_its: bool) -> None:
    assert is_about(record, created) is is_its


@pytest.mark.parametrize(
    ("action", "kind"), [("cancel scheduled", "cancelled"), ("give up", "failed"), ("discard", "discarded")]
)
def test_what_somebody_did_to_jobs_ends_each_of_them(action: str, kind: str) -> None:
    done = {"kind": "action", "at": 9.0, "action": action, "by": "ann", "outcome": "done", "ids": ["1", "2"]}

    others: list[Record] = [{**done, "outcome": "refused"}, {**done, "action": "pause"}]
    unnamed: list[Record] = [{"kind": "counts", "at": 1.0}, {"kind": "succeeded", "at": 1.0, "id": 3}]
    found = list(job_records(RecordBatch(1, "client", [done, *others, *unnamed])))

    assert all(is_end for _, is_end in found)
    assert [(record["id"], record["kind"]) for record, _ in found] == [("1", kind), ("2", kind)]
    assert found[0][0]["message"] == f"{action} by ann"
