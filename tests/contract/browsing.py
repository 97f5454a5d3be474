"""Contract: what a person sees, and that looking changes nothing."""

import time

import pytest
from msgspec.structs import replace

from palermo.contract.broker import Broker, open_broker
from palermo.core.lifecycle import Ack
from palermo.core.queue_selection import EVERY_QUEUE
from palermo.errors import NotFound
from tests.contract.tools import (
    FAILURE,
    Open,
    Report,
    consume,
    counts,
    ids,
    in_time,
    message,
    messages,
    put_into_failed,
    queue,
    take,
    take_and_ack,
    until,
)
from tests.helpers import Stopwatch


class LookingContract:
    async def test_queues_are_listed_by_name_with_their_counts(self, broker: Broker, another: Open) -> None:
        assert await broker.queues() == []
        await broker.publish_many([*messages(2, "b"), *messages(3, "a")])
        consumer = await consume(await another(), "b")
        await take(consumer)

        await until(lambda: counts(broker, "b"), (1, 1))
        await until(lambda: counts(broker, "a"), (3, 0))

        async def workers() -> list[tuple[str, int]]:
            return [(info.name, info.workers) for info in await broker.queues()]

        await until(workers, [("a", 0), ("b", 1)])

    async def test_one_question_tells_queues_workers_and_whether_all_are_paused(
        self, broker: Broker, another: Open
    ) -> None:
        await broker.publish_many([*messages(2, "b"), *messages(3, "a")])
        await take(await consume(await another(), "b"))
        await until(lambda: counts(broker, "b"), (1, 1))

        found = await broker.overview()

        assert (found.queues, found.workers) == (await broker.queues(), await broker.workers())
        assert (len(found.queues), len(found.workers), found.all_paused) == (2, 1, False)
        await broker.pause(EVERY_QUEUE)
        paused = await broker.overview()
        assert (paused.all_paused, {queue.paused for queue in paused.queues}) == (True, {True})

    async def test_a_queue_that_is_served_is_listed(self, broker: Broker) -> None:
        await consume(broker, "served")

        await until(lambda: counts(broker, "served"), (0, 0))

    async def test_looks_one_right_after_the_other_see_the_same(self, broker: Broker) -> None:
        await broker.publish_many(messages(3))

        for _ in range(100):
            assert [found.id for found in (await broker.browse("jobs")).messages] == [one.id for one in messages(3)]

    async def test_failed_is_listed_once_something_failed(self, broker: Broker) -> None:
        await broker.publish(message())
        assert await queue(broker, "failed") is None

        await put_into_failed(broker, [message("other", "other")])

        await until(lambda: counts(broker, "failed"), (1, 0))

    async def test_workers_show_who_they_are_and_what_they_serve(self, broker: Broker, another: Open) -> None:
        assert await broker.workers() == []
        reports = [Report("high,low", slots=4, pid=2), Report("*", pid=1)]
        consumers = [await consume(await another(), ",".join(one.info.queues), report=one) for one in reports]

        found = await broker.workers()
        assert found == [reports[1].info, reports[0].info]
        assert all(worker.seen_at is not None and abs(worker.seen_at - time.time()) < 60 for worker in found)

        leaving = consumers[:1]

        async def gone() -> float:
            one = leaving.pop() if leaving else await consume(await another(), report=Report("jobs", pid=3))
            watch = Stopwatch()
            await one.close()
            await until(broker.workers, [reports[1].info])
            return watch.seconds()

        await in_time(gone, within=1)

    async def test_workers_show_their_current_jobs_within_a_second(self, broker: Broker, another: Open) -> None:
        report = Report("jobs")
        consumer = await consume(await another(), report=report)

        async def shown() -> float:
            await broker.publish(message("7c9e"))
            delivery = await take(consumer)
            watch = Stopwatch()
            await until(broker.workers, [report.info])
            took = watch.seconds()
            assert report.info.jobs[0].id == "7c9e"
            await consumer.settle(delivery, Ack())
            return took

        await in_time(shown, within=1)

    async def test_workers_of_another_exchange_are_not_shown(self, broker: Broker, elsewhere: Open) -> None:
        await consume(await elsewhere())

        assert await broker.workers() == []

    async def test_browsing_leaves_order_and_counts_as_they_were(self, broker: Broker) -> None:
        sent = messages(30)
        await broker.publish_many(sent)

        for _ in range(3):
            page = await broker.browse("jobs")
            assert (list(page.messages), page.total) == (sent, 30)

        await until(lambda: counts(broker), (30, 0))
        consumer = await consume(broker)
        assert [await take_and_ack(consumer) for _ in range(30)] == sent

    @pytest.mark.parametrize(
        ("offset", "limit", "newest", "expected"),
        [
            (0, 3, False, [0, 1, 2]),
            (4, 3, False, [4, 5, 6]),
            (8, 5, False, [8, 9]),
            (10, 5, False, []),
            (0, 3, True, [9, 8, 7]),
            (4, 3, True, [5, 4, 3]),
            (8, 5, True, [1, 0]),
            (0, 0, False, []),
        ],
    )
    async def test_browsing_gives_a_page(
        self, broker: Broker, offset: int, limit: int, newest: bool, expected: list[int]
    ) -> None:
        await broker.publish_many(messages(10))

        page = await broker.browse("jobs", offset=offset, limit=limit, newest=newest)

        assert [found.id for found in page.messages] == [f"jobs-{number}" for number in expected]
        assert page.total == 10

    async def test_browsing_keeps_no_more_of_a_body_than_is_asked_for(self, broker: Broker, another: Open) -> None:
        large, small = message("large", body=b"x" * 300_000), message("small", body=b"[1]")
        empty = message("empty", body=b"")
        await broker.publish_many([large, small, empty, replace(large, id="apart", tenant="a")])

        for newest in (False, True):
            page = await broker.browse("jobs", newest=newest, max_body=1_000)
            found = {one.id: len(one.body) for one in page.messages}
            assert found == {"large": 1_001, "small": 3, "empty": 0, "apart": 1_001}

        consumer = await consume(await another())
        assert len((await take(consumer)).message.body) == 300_000

    async def test_browsing_shows_only_what_waits(self, broker: Broker, another: Open) -> None:
        await broker.publish_many(messages(3))
        await take(await consume(await another()))

        await until(lambda: ids(broker), ["jobs-1", "jobs-2"])

    async def test_a_failed_job_is_shown_with_its_failure_and_its_home(self, broker: Broker) -> None:
        await put_into_failed(broker, [message("7c9e", "mail", extra={"region": "acme"})])

        (found,) = (await broker.browse("failed")).messages

        assert (found.id, found.queue, found.retries) == ("7c9e", "mail", 0)
        assert (found.failure, found.worker, found.extra) == (FAILURE, "pid:1@h/worker-1", {"region": "acme"})

    async def test_purging_removes_what_waits_and_counts_it(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([*messages(5), *messages(1, "other")])
        consumer = await consume(await another())
        held = await take(consumer)
        await until(lambda: counts(broker), (4, 1))
        watcher = await another()
        await consumer.pause_slot(1)

        assert await watcher.purge("jobs") == 4

        await until(lambda: counts(broker), (0, 1))
        await consumer.settle(held, Ack())
        await until(lambda: counts(broker, "other"), (1, 0))

    async def test_deleting_removes_the_queue_and_counts_what_waited(self, broker: Broker) -> None:
        await broker.publish_many([*messages(5), *messages(1, "other")])

        assert await broker.delete("jobs") == 5

        assert [info.name for info in await broker.queues()] == ["other"]
        with pytest.raises(NotFound):
            await broker.browse("jobs")

    async def test_a_deleted_queue_can_be_published_to_again(self, broker: Broker, another: Open) -> None:
        await broker.publish(message("old"))
        consumer = await consume(await another())
        await take_and_ack(consumer)

        await broker.delete("jobs")
        await broker.publish(message("new"))

        assert (await take_and_ack(consumer)).id == "new"

    async def test_a_queue_that_is_not_there_is_not_found(self, broker: Broker) -> None:
        with pytest.raises(NotFound, match="'nowhere'"):
            await broker.browse("nowhere")
        with pytest.raises(NotFound, match="'nowhere'"):
            await broker.purge("nowhere")
        with pytest.raises(NotFound, match="'nowhere'"):
            await broker.delete("nowhere")
        assert await queue(broker, "nowhere") is None

    async def test_after_a_session_that_failed_another_one_finds_its_jobs(self, broker: Broker) -> None:
        await broker.publish(message(queue="mail"))

        again = await open_broker(broker.after_failure())

        await until(lambda: counts(again, "mail"), (1, 0))
        await again.close()

    async def test_a_session_describes_itself(self, broker: Broker) -> None:
        assert broker.describe()
