"""Contract: what can be seen and found without a change, and sweeps of a queue, which take out what is meant."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

import pytest
from msgspec.structs import replace

from palermo.client.status import locate
from palermo.contract.broker import Broker
from palermo.contract.events import Subscription
from palermo.contract.sweep import Keep, Move, Remove, Stop, SweepDecision, SweepProgress
from palermo.core.lifecycle import Ack, requeue
from palermo.core.message import Message
from palermo.core.queue_selection import EVERY_QUEUE
from palermo.errors import NotFound
from tests.contract.tools import Open, counts, ids, in_time, message, messages, put_into_failed, queue, until
from tests.contract.workers import Report, consume, take, take_and_ack
from tests.helpers import Stopwatch


async def states(broker: Broker, *ids: str, queue: str = "jobs") -> list[str]:
    return [(await locate(broker, id, queue)).state for id in ids]


class LookingContract:
    async def test_queues_are_listed_by_name_with_their_counts(self, broker: Broker, another: Open) -> None:
        assert await broker.queues() == []
        await broker.publish_many([*messages(2, "b"), *messages(3, "a")])
        consumer = await consume(await another(), "b")
        await take(consumer)
        await consume(await another(), "served")

        await until(lambda: counts(broker, "b"), (1, 1))
        await until(lambda: counts(broker, "a"), (3, 0))

        async def workers() -> list[tuple[str, int]]:
            return [(info.name, info.workers) for info in await broker.queues()]

        await until(workers, [("a", 0), ("b", 1), ("served", 1)])

        async def overview_agrees() -> bool:
            found = await broker.overview()
            return (found.queues, found.workers) == (await broker.queues(), await broker.workers())

        # Between two looks RabbitMQ may count a job less for an instant.
        await until(overview_agrees, True)
        found = await broker.overview()
        assert (len(found.queues), len(found.workers), found.all_paused) == (3, 2, False)
        await broker.pause(EVERY_QUEUE)
        paused = await broker.overview()
        assert (paused.all_paused, {queue.paused for queue in paused.queues}) == (True, {True})

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

    async def test_browsing_gives_a_page_and_leaves_order_and_counts_as_they_were(self, broker: Broker) -> None:
        await broker.publish_many(sent := messages(10))

        for offset, limit, newest, expected in [
            *((0, 3, False, [0, 1, 2]), (4, 3, False, [4, 5, 6]), (8, 5, False, [8, 9]), (10, 5, False, [])),
            *((0, 3, True, [9, 8, 7]), (4, 3, True, [5, 4, 3]), (8, 5, True, [1, 0]), (0, 0, False, [])),
        ]:
            page = await broker.browse("jobs", offset=offset, limit=limit, newest=newest)
            assert (list(page.messages), page.total) == ([sent[number] for number in expected], 10)

        await until(lambda: counts(broker), (10, 0))
        consumer = await consume(broker)
        assert [await take_and_ack(consumer) for _ in range(10)] == sent

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

    async def test_purging_removes_what_waits_and_counts_it(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([*messages(5), *messages(1, "other")])
        consumer = await consume(await another())
        held = await take(consumer)
        await until(lambda: counts(broker), (4, 1))
        await until(lambda: ids(broker), ["jobs-1", "jobs-2", "jobs-3", "jobs-4"])
        watcher = await another()
        await consumer.pause_slot(1)

        assert await watcher.purge("jobs") == 4

        assert await watcher.sweep("jobs", judge({})) == SweepProgress(total=0)
        await until(lambda: counts(broker), (0, 1))
        await consumer.settle(held, Ack())
        await until(lambda: counts(broker, "other"), (1, 0))

    async def test_a_queue_is_deleted_and_made_again(self, broker: Broker, another: Open) -> None:
        await broker.publish_many([*messages(6), *messages(1, "other")])
        consumer = await consume(await another())
        await take_and_ack(consumer)
        await consumer.pause_slot(1)

        assert await broker.delete("jobs") == 5

        assert [info.name for info in await broker.queues()] == ["other"]
        with pytest.raises(NotFound):
            await broker.browse("jobs")
        await broker.publish(message("new"))
        assert (await take_and_ack(consumer)).id == "new"

    async def test_a_queue_that_is_not_there_is_not_found(self, broker: Broker) -> None:
        for ask in (broker.browse, broker.purge, broker.delete, lambda name: broker.sweep(name, judge({}))):
            with pytest.raises(NotFound, match="'nowhere'"):
                await ask("nowhere")
        assert await queue(broker, "nowhere") is None

    async def test_the_doctor_finds_no_fault_and_changes_nothing(
        self, broker: Broker, another: Open, caplog: pytest.LogCaptureFixture
    ) -> None:
        other = await another()
        await broker.events.subscribe(Subscription(group="mail", queue="jobs", topics=("#",)))
        before = await broker.diagnose()
        await broker.publish_many(messages(3))
        after = await broker.diagnose()

        for finding in (*before, *after):
            assert finding.level == "ok" or (finding.level == "warning" and finding.advice), finding
        assert "cannot read" not in caplog.text
        assert {"server version", "publish", "registry", "clock"} <= {finding.check for finding in after}
        assert [(queue.name, queue.pending) for queue in await other.queues() if queue.pending] == [("jobs", 3)]
        assert await ids(other) == ["jobs-0", "jobs-1", "jobs-2"]
        assert not [queue.name for queue in await other.queues() if "doctor" in queue.name]

    @pytest.mark.slow
    async def test_a_job_is_found_wherever_it_is(self, broker: Broker, another: Open) -> None:
        await put_into_failed(broker, [message("failed")])
        await broker.publish(message("working"))
        consumer = await consume(await another())
        await take(consumer)
        await until(lambda: states(broker, "working"), ["working"])
        await broker.publish_many([message("waits"), message("cancelled"), message("tenant", tenant="a")])
        await broker.publish(message("later", run_at=time.time() + 3_600))
        await broker.cancel(["cancelled"])

        where = ("later", "waits", "cancelled", "tenant", "working", "failed", "nobody")
        assert await states(broker, *where) == ["scheduled", "pending", "cancelled", "pending", "working", "failed", ""]
        assert await states(broker, "waits", "cancelled", "nobody", queue="") == ["pending", "cancelled", ""]
        assert (await locate(broker, "nobody")).gone
        assert (await locate(broker, "failed", "jobs", failed=False)).gone
        assert (await locate(broker, "working")).worker == "pid:4711@example"

    async def test_several_jobs_are_found_by_ids_or_their_beginnings(self, broker: Broker, another: Open) -> None:
        await put_into_failed(broker, [message("order-17-failed")])
        await broker.publish(message("order-17-later", run_at=time.time() + 3_600))
        await broker.publish_many([message("order-17-waits"), message("order-18"), message("my-order-17", "other")])

        found = await broker.find(["order-18", "my-order-17", "order-1"], failed=False)
        begun = await broker.find(["order-17"], beginnings=True)

        assert sorted(place.id for place in found.jobs) == ["my-order-17", "order-18"]
        states_of = {place.id.removeprefix("order-17-"): place.state for place in begun.jobs}
        assert states_of == {"later": "scheduled", "waits": "pending", "failed": "failed"}

    async def test_a_job_that_was_requeued_elsewhere_is_found(self, broker: Broker) -> None:
        await broker.publish_many([message("first"), message("moved", "other")])
        await take_and_ack(await consume(broker))

        await until(lambda: states(broker, "moved"), ["pending"])
        place = await locate(broker, "moved", "jobs")
        assert place.message is not None
        assert place.message.queue == "other"


def judge(verdicts: dict[str, SweepDecision]) -> Callable[[Message], SweepDecision]:
    return lambda found: verdicts.get(found.id, Keep())


class SweepingContract:
    async def test_what_is_removed_is_gone_and_the_rest_keeps_its_order(self, broker: Broker) -> None:
        await broker.publish_many([*messages(6), message("jobs-1")])

        swept = await broker.sweep("jobs", judge({"jobs-1": Remove(), "jobs-4": Remove()}))

        assert swept == SweepProgress(total=7, seen=7, removed=3)
        await until(lambda: ids(broker), ["jobs-0", "jobs-2", "jobs-3", "jobs-5"])

    async def test_what_is_moved_is_in_its_new_queue_and_no_longer_in_the_old(self, broker: Broker) -> None:
        await put_into_failed(broker, messages(4))

        def decide(found: Message) -> SweepDecision:
            return Move(requeue(found, queue="again")) if found.id in ("jobs-1", "jobs-2") else Keep()

        swept = await broker.sweep("failed", decide)

        assert swept == SweepProgress(total=4, seen=4, moved=2)
        await until(lambda: ids(broker, "failed"), ["jobs-0", "jobs-3"])
        found = (await broker.browse("again")).messages
        again = [(one.id, one.queue, one.retries, one.failure) for one in found]
        assert again == [("jobs-1", "again", 1, None), ("jobs-2", "again", 1, None)]

    @pytest.mark.parametrize("action", ["remove", "move"])
    async def test_of_two_sweeps_at_once_one_reports_a_job(self, broker: Broker, another: Open, action: str) -> None:
        other, all_jobs, done = await another(), messages(600), list[str]()
        await broker.publish_many(all_jobs)
        await until(lambda: counts(broker), (600, 0))

        def decide(found: Message) -> SweepDecision:
            note = partial(done.append, found.id)
            return Remove(note) if action == "remove" else Move(replace(found, queue="other"), note)

        swept = await asyncio.gather(broker.sweep("jobs", decide), other.sweep("jobs", decide))

        assert sum(one.removed + one.moved for one in swept) == len(done)
        assert len(done) >= 300
        assert sorted([*done, *await ids(broker)]) == sorted(job.id for job in all_jobs)

    async def test_stop_leaves_the_rest_alone(self, broker: Broker) -> None:
        await broker.publish_many(messages(5))
        asked: list[str] = []

        def decide(found: Message) -> SweepDecision:
            asked.append(found.id)
            return Remove() if len(asked) <= 2 else Stop()

        swept = await broker.sweep("jobs", decide)

        assert (swept.total, swept.removed, asked) == (5, 2, ["jobs-0", "jobs-1", "jobs-2"])
        await until(lambda: ids(broker), ["jobs-2", "jobs-3", "jobs-4"])

    async def test_failed_jobs_are_found_among_many_by_id_and_no_other_is_touched(self, broker: Broker) -> None:
        await put_into_failed(broker, [message("twin"), *messages(220), message("twin"), message("zwölf")])

        twins = await broker.sweep("failed", judge({"twin": Remove()}), ids=["twin", "nobody"])
        assert twins == SweepProgress(total=223, seen=223, removed=2)
        removed = {"zwölf": Remove(), "jobs-210": Remove()}
        others = await broker.sweep("failed", judge(removed), ids=[*removed])
        assert others == SweepProgress(total=221, seen=221, removed=2)

        left = (await broker.browse("failed", limit=250)).messages
        assert [one.id for one in left] == [f"jobs-{number}" for number in range(220) if number != 210]

    async def test_a_look_at_one_failed_job_stops_where_it_is_told_to(self, broker: Broker) -> None:
        await put_into_failed(broker, messages(5))
        found: list[str] = []

        def see(one: Message) -> SweepDecision:
            if one.id == "jobs-3":
                found.append(one.id)
            return Stop() if found else Keep()

        await broker.sweep("failed", see, only_look=True, ids=["jobs-3"])

        assert found == ["jobs-3"]
        assert await ids(broker, "failed") == [f"jobs-{number}" for number in range(5)]

    async def test_what_is_moved_to_the_same_queue_is_not_looked_at_again(self, broker: Broker) -> None:
        await broker.publish_many(messages(10))

        swept = await broker.sweep("jobs", lambda found: Move(replace(found, retries=(found.retries or 0) + 1)))

        assert swept == SweepProgress(total=10, seen=10, moved=10)
        found = (await broker.browse("jobs")).messages
        assert [(one.id, one.retries) for one in found] == [(f"jobs-{number}", 1) for number in range(10)]

    async def test_what_comes_in_meanwhile_is_not_looked_at(self, broker: Broker, another: Open) -> None:
        other = await another()
        await broker.publish_many(messages(1_000))
        await until(lambda: counts(broker), (1_000, 0))
        arrived = 0
        publishing: list[asyncio.Task[None]] = []

        def decide(found: Message) -> SweepDecision:
            nonlocal arrived
            arrived += found.id == "late"
            if len(publishing) < 3:
                publishing.append(asyncio.get_running_loop().create_task(other.publish(message("late"))))
            return Remove()

        swept = await broker.sweep("jobs", decide)
        await asyncio.gather(*publishing)

        assert (swept.seen, arrived) == (1_000, 0)
        await until(lambda: ids(broker), ["late"] * 3)

    async def test_progress_is_told_and_ends_at_the_total(self, broker: Broker) -> None:
        await broker.publish_many(messages(1_500))
        await until(lambda: counts(broker), (1_500, 0))
        told: list[SweepProgress] = []

        swept = await broker.sweep("jobs", judge({"jobs-7": Remove()}), progress=told.append)

        assert swept == SweepProgress(total=1_500, seen=1_500, removed=1)
        assert len(told) > 1
        assert told[-1] == swept
        assert [one.seen for one in told] == sorted(one.seen for one in told)

    async def test_a_judge_that_raises_harms_nothing(self, broker: Broker) -> None:
        await broker.publish_many(messages(5))

        def decide(found: Message) -> SweepDecision:
            if found.id == "jobs-3":
                raise LookupError("a judge may raise")
            return Keep()

        with pytest.raises(LookupError, match="a judge may raise"):
            await broker.sweep("jobs", decide)

        await until(lambda: ids(broker), [f"jobs-{number}" for number in range(5)])
