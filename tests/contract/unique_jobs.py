"""Contract: jobs that need a key."""

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.contract import clock
from palermo.contract.broker import MAX_KEYED_BODY, Broker, Delivery
from palermo.contract.clock import wall_clock
from palermo.contract.scheduled import CANCEL, GIVE_UP, MOVE, RUN, ScheduledFilter
from palermo.contract.sweep import Keep, Move, Remove
from palermo.contract.unique_jobs import UniqueJob
from palermo.core.job_edit import JobEdit
from palermo.core.lifecycle import Ack, Fail, Release, Reschedule, StoredResult, fail, requeue
from palermo.core.message import Message
from palermo.core.step_values import pack
from palermo.core.unique_keys import KeyRequest, Mode, UniqueLock, with_lock
from palermo.core.unique_rules import DEBOUNCE, REPLACE, RERUN, THROTTLE, EnqueueAnswer, EnqueueOutcome
from palermo.core.workflow import AddedStep, Graph
from palermo.core.workflow_rules import Plan
from palermo.errors import BodyTooLarge, NotBrowsable
from tests.contract.timing import time_kept
from tests.contract.tools import FAILURE, Open, counts, ids, look, message, until
from tests.contract.workers import Worker, consume, nothing_for, take, take_and_ack

KEY = "shop.mail.send:ü"

#: The step that a run adds, so that it becomes a workflow without jobs.
WAITS = pack(Graph((AddedStep(Plan(name="approved", signal=True)),)))


def keyed(
    id: str, mode: Mode = Mode.DONE, *, key: str = KEY, linger: float = 0.0, seconds: float = 0.0, **more: Any
) -> Message:
    """A job that needs the key."""
    return with_lock(message(id, **more), UniqueLock(key=key, mode=mode, linger=linger, seconds=seconds))


async def ask(broker: Broker, job: Message, *, call: str = "", key: str = KEY, **more: Any) -> EnqueueAnswer:
    """Enqueue a job with a key."""
    (answer,) = await broker.keys.enqueue([KeyRequest(key=key, message=job, call=call or f"call {job.id}", **more)])
    return answer


async def outcome(broker: Broker, id: str, mode: Mode = Mode.DONE, **more: Any) -> str:
    return (await ask(broker, keyed(id, mode), **more)).outcome


async def holders(broker: Broker) -> list[tuple[str, str]]:
    """Who has keys, and where it is."""
    return [(key.holder.id, str(key.holder.phase)) for key in await broker.keys.known() if key.holder is not None]


async def holder_place(broker: Broker) -> tuple[str, float | None]:
    """The queue and the due time of the job that has the key."""
    key = await broker.keys.find(KEY)
    assert key is not None
    assert key.holder is not None
    return key.holder.queue, key.holder.run_at


async def begun(worker: Worker) -> Delivery:
    """Take the next job and start it; it may come again first, if the worker that had it went a moment ago."""
    while True:
        if (admitted := await worker.admit(await take(worker))) is not None:
            return admitted


async def freed(broker: Broker) -> None:
    """On some brokers the end of a job is stored a moment before it is heard of."""
    await until(lambda: holders(broker), [])


class Behind:
    """A machine whose slowest clock stands still until a test lets it go."""

    def __init__(self) -> None:
        self.stands_at: float | None = time.time()

    def now(self) -> float:
        return time.time()

    def reached(self) -> float:
        return time.time() if self.stands_at is None else self.stands_at


class KeyingContract:
    @pytest.fixture
    def worker(self, runner: asyncio.Runner, another: Open) -> Worker:
        async def started() -> Worker:
            return await consume(await another(), slots=2)

        return runner.run(started())

    @pytest.fixture
    def running(self, runner: asyncio.Runner, broker: Broker, worker: Worker) -> Delivery:
        """A run of the job `a`, which has the key."""

        async def begin() -> Delivery:
            await ask(broker, keyed("a"))
            return await begun(worker)

        return runner.run(begin())

    async def test_the_second_enqueue_of_a_key_is_answered_with_the_first(self, broker: Broker, another: Open) -> None:
        other = await another()
        assert await ask(broker, keyed("a")) == EnqueueAnswer(outcome=EnqueueOutcome.STORED, id="a")

        assert await ask(other, keyed("b")) == EnqueueAnswer(outcome=EnqueueOutcome.DUPLICATE, id="a", state="waiting")

        assert await ask(other, keyed("a")) == EnqueueAnswer(outcome=EnqueueOutcome.STORED, id="a")  # asked again
        assert await other.keys.why_silent() is None
        assert await ids(broker) == ["a"]
        assert await outcome(other, "c", key="another") == "stored"
        worker = await consume(await another())
        await begun(worker)
        assert await ask(other, keyed("d")) == EnqueueAnswer(outcome=EnqueueOutcome.DUPLICATE, id="a", state="running")

    async def test_announced_unique_jobs_are_known(self, broker: Broker, another: Open) -> None:
        parameters = (("shop", 1), ("full", 3, False))
        sync = UniqueJob(name="shop.sync", options={"unique": "until_done"}, parameters=parameters)
        index = UniqueJob(name="shop.index", options={"unique": 1.5}, keyed_by_code=True)
        other = await another()
        assert await broker.keys.announced() == {}

        await broker.keys.announce(["shop.sync", "shop.index", "shop.note"], [sync, index])
        assert await other.keys.announced() == {"shop.index": index, "shop.sync": sync}

        # Another worker, with other jobs.
        await other.keys.announce(["shop.note"], [])
        assert await broker.keys.announced() == {"shop.index": index, "shop.sync": sync}

        # A new release: one is unique otherwise, one is not any more.
        longer = replace(sync, options={"unique": "until_done", "dedupe": 60})
        await other.keys.announce(["shop.sync", "shop.index"], [longer])
        assert await broker.keys.announced() == {"shop.sync": longer}

    async def test_of_many_at_once_one_is_stored(self, broker: Broker, another: Open) -> None:
        sessions = [broker, *[await another() for _ in range(3)]]

        answers = await asyncio.gather(*(ask(sessions[n % 4], keyed(f"job {n}")) for n in range(40)))

        stored = [answer.id for answer in answers if answer.outcome == "stored"]
        assert len(stored) == 1
        assert {answer.id for answer in answers} == set(stored)
        assert await ids(broker) == stored

    async def test_many_keys_at_once_in_one_call(self, broker: Broker) -> None:
        keys = [f"key {n % 30}" for n in range(60)]
        claims = [KeyRequest(key=k, message=keyed(f"job {n}", key=k), call=str(n)) for n, k in enumerate(keys)]

        answers = await broker.keys.enqueue(claims)

        assert [answer.outcome for answer in answers] == ["stored"] * 30 + ["duplicate"] * 30
        assert await ids(broker) == [f"job {n}" for n in range(30)]
        assert [key.name for key in await broker.keys.known()] == sorted(f"key {n}" for n in range(30))

    async def test_a_listing_of_keys_has_only_those_with_a_text(self, broker: Broker) -> None:
        for id, key in (("a", "eu 1"), ("b", "us"), ("eu", "asia"), ("c", "eu 2")):
            await ask(broker, keyed(id, key=key), key=key)
        await ask(broker, keyed("kept", key="eu 3"), key="eu 3", spread=DEBOUNCE, seconds=600)

        page = await broker.keys.page("eu", offset=0, limit=2)
        rest = await broker.keys.page("eu", offset=2, limit=2)

        assert [key.name for key in (*page.keys, *rest.keys)] == ["asia", "eu 1", "eu 2", "eu 3"]
        assert page.total == rest.total == 4
        assert len((await broker.keys.page(message("x").job, offset=0, limit=10)).keys) == 5
        assert (await broker.keys.page("nowhere", offset=0, limit=10)).total == 0

    async def test_a_name_finds_its_key(self, broker: Broker, another: Open, worker: Worker, running: Delivery) -> None:
        other = await another()
        await ask(broker, keyed("longer", key=f"{KEY} 2"), key=f"{KEY} 2")
        await ask(broker, keyed("b"), on_duplicate=RERUN)

        found = await other.keys.find(KEY)
        assert found is not None
        assert (found.name, found.job_after("a"), found.job_after("b")) == (KEY, "b", "")
        assert [key.name for key in (await other.keys.page("b", offset=0, limit=9)).keys] == [KEY]
        assert await other.keys.find("shop.mail.send") is None

        await worker.settle(running, Ack())

        async def after() -> tuple[str, str]:
            key = await other.keys.find(KEY)
            return ("", "") if key is None or key.holder is None else (key.holder.id, key.job_after("a"))

        await until(after, ("b", "b"))

    async def test_a_key_tells_until_when_it_is_closed(self, broker: Broker, another: Open) -> None:
        now = wall_clock()
        await ask(broker, keyed("a", Mode.WINDOW, seconds=600.0))
        await ask(broker, message("b"), key="throttle:b", spread=THROTTLE, seconds=600.0)
        await ask(broker, message("c"), key="throttle:b", spread=THROTTLE, seconds=600.0)
        other = await another()

        window, throttled = await other.keys.find(KEY), await other.keys.find("throttle:b")

        assert window is not None
        assert throttled is not None
        assert now + 590 < (window.closed_until or 0) < now + 900
        assert now + 590 < (throttled.closed_until or 0) < now + 900
        assert (window.job_after("a"), throttled.job_after("b"), throttled.job_after("c")) == ("", "c", "")

    async def test_an_enqueue_is_answered_during_a_large_listing(self, broker: Broker, another: Open) -> None:
        names = [f"key {number:04}" for number in range(1_200)]
        await broker.keys.enqueue([KeyRequest(key=n, message=keyed(f"job {n}", key=n), call=n) for n in names])
        listing = asyncio.ensure_future((await another()).keys.known())

        answers = [await ask(broker, keyed(f"beside {n}", key=f"beside {n}"), key=f"beside {n}") for n in range(5)]

        assert [answer.outcome for answer in answers] == ["stored"] * 5
        found = [key.name for key in await listing]
        assert [name for name in found if not name.startswith("beside")] == names

    @pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
    async def test_until_done_ends_with_it(self, broker: Broker, worker: Worker, running: Delivery, end: str) -> None:
        await worker.settle(running, Reschedule(replace(running.message, retries=1, run_at=wall_clock())))
        delivery = await begun(worker)
        assert await outcome(broker, "b") == "duplicate"

        failed = Fail(fail(delivery.message, FAILURE, worker="w"))
        await worker.settle(delivery, failed if end == "failed" else Ack(done=end == "done"))

        await freed(broker)
        assert await outcome(broker, "c") == "stored"

    async def test_who_decides_next_knows_first_what_has_ended(self, broker: Broker, another: Open) -> None:
        first = await another()
        worker = await consume(first)
        await ask(first, keyed("a"))
        delivery = await begun(worker)
        await worker.settle(delivery, Reschedule(replace(delivery.message, retries=1)))
        await worker.settle(await begun(worker), Ack())
        await worker.close()
        await first.close()

        answers = await asyncio.gather(ask(broker, keyed("a"), call="other"), ask(broker, keyed("b")))

        assert sorted(answer.outcome for answer in answers) == ["duplicate", "stored"]
        assert len(await holders(broker)) == 1

    @pytest.mark.slow
    @pytest.mark.parametrize("queues", ["jobs", "jobs,others"])
    async def test_a_slot_continues_while_ends_are_stored(self, broker: Broker, another: Open, queues: str) -> None:
        names = [f"job {n}" for n in range(12)]
        await broker.keys.enqueue([KeyRequest(key=name, message=keyed(name, key=name), call=name) for name in names])
        busy = await consume(await another(), queues)
        ran: list[str] = []
        for _ in range(9):
            delivery = await begun(busy)
            ran.append(delivery.message.id)
            await busy.settle(delivery, Ack())
        held = await begun(busy)

        idle = await consume(await another(), queues)
        for _ in range(2):
            delivery = await begun(idle)
            ran.append(delivery.message.id)
            await idle.settle(delivery, Ack())

        await until(lambda: holders(broker), [(held.message.id, "running")])
        await busy.close()
        last = await begun(idle)
        assert last.message.id == held.message.id
        await idle.settle(last, Ack())
        await freed(broker)
        await nothing_for(idle)
        assert sorted([*ran, last.message.id]) == sorted(names)

    async def test_until_start_ends_when_it_is_started(self, broker: Broker, worker: Worker) -> None:
        await ask(broker, keyed("a", Mode.START))
        assert await outcome(broker, "b", Mode.START) == "duplicate"

        delivery = await begun(worker)

        assert await outcome(broker, "c", Mode.START) == "stored"
        second = await worker.admit(await take(worker, 2))
        assert second is not None
        assert (second.message.id, second.duplicate_of) == ("c", "")
        await worker.settle(delivery, Ack())
        await worker.settle(second, Ack())
        await freed(broker)

    async def test_seconds_pass_unless_the_job_failed(self, broker: Broker, worker: Worker) -> None:
        await ask(broker, keyed("failed", Mode.WINDOW, seconds=600))
        delivery = await begun(worker)
        await worker.settle(delivery, Fail(fail(delivery.message, FAILURE, worker="w")))
        await freed(broker)

        begin = time.time()
        assert (await ask(broker, keyed("a", Mode.WINDOW, seconds=1.0))).outcome == "stored"
        await worker.settle(await begun(worker), Ack())
        async with asyncio.timeout(60):
            while (answer := await ask(broker, keyed("c"))).outcome != "stored":
                assert answer.id == "a"
                await asyncio.sleep(0.05)
        assert time.time() - begin >= 1.0

    async def test_a_key_that_is_over_is_not_listed(self, broker: Broker) -> None:
        await ask(broker, keyed("a", Mode.WINDOW, seconds=0.2))
        await ask(broker, keyed("b", key="another"), key="another")

        async def names() -> list[str]:
            return [key.name for key in (await broker.keys.page("", offset=0, limit=10)).keys]

        await until(names, ["another"])

    async def test_a_waiting_job_is_shown_moved_and_run_with_its_replaced_arguments(self, broker: Broker) -> None:
        await broker.publish_many([message("plain", body=b"[1]")])
        await ask(broker, keyed("a", body=b'["old"]'))
        assert await outcome(broker, "between", on_duplicate=REPLACE) == "replaced"
        after = keyed("b", body=b'["new and longer"]', preview="'new'")
        last = await ask(broker, after, on_duplicate=REPLACE)
        assert (last.outcome, last.id) == (EnqueueOutcome.REPLACED, "a")

        seen: dict[str, bytes] = {}

        def judge(one: Message) -> Keep | Move:
            seen[one.id] = one.body
            return Move(replace(one, queue="elsewhere")) if one.body == after.body else Keep()

        assert [(one.id, one.body) for one in await look(broker)] == [("plain", b"[1]"), ("a", after.body)]
        with suppress(NotBrowsable):
            page = await broker.browse("jobs", max_body=3)
            assert [(one.id, one.body) for one in page.messages] == [("plain", b"[1]"), ("a", after.body[:4])]
        assert (await broker.sweep("jobs", judge)).moved == 1
        assert seen == {"plain": b"[1]", "a": after.body}
        assert [one.body for one in await look(broker, "elsewhere")] == [after.body]
        worker = await consume(broker, "elsewhere")
        delivery = await begun(worker)
        assert (delivery.message.id, delivery.message.body, delivery.message.preview) == ("a", after.body, "'new'")
        await worker.settle(delivery, Ack())
        await freed(broker)

    async def test_a_retrying_job_is_shown_and_failed_with_replaced_arguments(self, broker: Broker) -> None:
        at = wall_clock() + 3_600
        await ask(broker, keyed("a", body=b'["old"]', run_at=at, failure=FAILURE))
        await ask(broker, keyed("b", body=b'["new"]'), on_duplicate=REPLACE)

        (shown,) = (await broker.scheduled(ScheduledFilter())).messages
        await broker.alter_scheduled(ScheduledFilter(ids=frozenset({"a"})), GIVE_UP)

        assert (shown.id, shown.body, shown.run_at) == ("a", b'["new"]', pytest.approx(at, abs=0.01))
        (failed,) = await look(broker, "failed")
        assert (failed.id, failed.body) == ("a", b'["new"]')
        assert await holders(broker) == []

    @pytest.mark.parametrize("way", [REPLACE, RERUN])
    async def test_one_more_run_after_this(self, broker: Broker, worker: Worker, running: Delivery, way: str) -> None:
        assert await outcome(broker, "b", on_duplicate=way) == "next"
        assert (await ask(broker, keyed("c"), on_duplicate=way)).displaced == "b"
        assert await counts(broker) == (0, 1)

        await worker.settle(running, Ack())

        delivery = await begun(worker)
        assert delivery.message.id == "c"
        assert await outcome(broker, "d") == "duplicate"
        await worker.settle(delivery, Ack())
        await nothing_for(worker)

    async def test_a_worker_that_dies_leaves_the_key_to_its_job(self, broker: Broker, another: Open) -> None:
        dying = await another()
        worker = await consume(dying)
        await ask(broker, keyed("a"))
        await begun(worker)
        assert await outcome(broker, "next", on_duplicate=RERUN) == "next"
        await dying.close()

        heir = await consume(await another())
        delivery = await begun(heir)

        assert (delivery.message.id, delivery.redelivered, delivery.duplicate_of) == ("a", True, "")
        assert await outcome(broker, "b") == "duplicate"
        await heir.settle(delivery, Release())
        for id in ("a", "next"):
            delivery = await begun(heir)
            assert delivery.message.id == id
            await heir.settle(delivery, Ack())
        await freed(broker)

    async def test_a_job_without_the_key_takes_it_or_is_a_duplicate(self, broker: Broker, worker: Worker) -> None:
        """Such as one that another program published, or whose key somebody freed."""
        await broker.publish(keyed("a"))
        first = await begun(worker)
        await broker.publish(keyed("b"))

        second = await worker.admit(await take(worker, 2))

        assert second is not None
        assert second.duplicate_of == "a"
        await worker.settle(second, Fail(fail(second.message, FAILURE, worker="w")))
        assert await holders(broker) == [("a", "running")]
        await worker.settle(first, Ack())
        await freed(broker)
        await broker.sweep("failed", lambda job: Move(requeue(job)))
        assert await holders(broker) == [("b", "waiting")]

    async def test_a_copy_of_a_job_that_ran_is_dropped(self, broker: Broker, worker: Worker, running: Delivery) -> None:
        await broker.publish(keyed("a"))
        assert await worker.admit(await take(worker, 2)) is None
        await worker.pause_slot(2)
        await worker.settle(running, Ack())
        await broker.publish(keyed("a"))
        assert await worker.admit(await take(worker, 1)) is None
        await until(lambda: counts(broker), (0, 0))
        await freed(broker)

    async def test_a_job_given_back_waits_again_and_takes_its_key_along(
        self, broker: Broker, worker: Worker, running: Delivery
    ) -> None:
        for slot in (1, 2):
            await worker.pause_slot(slot)
        await worker.settle(running, Release())
        await until(lambda: holders(broker), [("a", "waiting")])
        await until(lambda: counts(broker), (1, 0))
        await broker.purge("jobs")
        assert await holders(broker) == []

    async def test_whoever_takes_the_job_away_frees_the_key(self, broker: Broker, another: Open) -> None:
        other, later = await another(), time.time() + 600
        for way, (take_away, told) in {
            "purged": (lambda: other.purge("jobs"), [1]),
            "deleted": (lambda: other.delete("jobs"), [1]),
            "removed": (lambda: other.sweep("jobs", lambda _: Remove()), None),
            "cancelled": (lambda: other.cancel(["cancelled"]), [[], ()]),
            "scheduled": (lambda: other.alter_scheduled(ScheduledFilter(ids=frozenset({"scheduled"})), CANCEL), None),
            "freed by hand": (lambda: other.keys.free([KEY, "unknown"]), [[KEY]]),
        }.items():
            assert (await ask(broker, keyed(way, run_at=later if way == "scheduled" else None))).outcome == "stored"

            done = await take_away()

            assert await holders(broker) == [], way
            assert told is None or done in told, way

    @pytest.mark.parametrize("way", ["queue", "put off", "later", "sooner", "edited"])
    async def test_a_moved_job_keeps_its_key(self, broker: Broker, another: Open, way: str) -> None:
        now = time.time()
        waits_until = {"later": now + 600, "sooner": now + 600, "edited": now + 900}.get(way)
        await ask(broker, keyed("a", run_at=waits_until))
        just = ScheduledFilter(ids=frozenset({"a"}))

        async with time_kept(await another()):
            match way:
                case "queue":
                    await broker.sweep("jobs", lambda one: Move(replace(one, queue="elsewhere")))
                case "put off":
                    edit = JobEdit(queue="elsewhere", run_at=now + 600)
                    await broker.sweep("jobs", lambda one: Move(edit.applied_to(one)))
                case "later":
                    await broker.alter_scheduled(just, MOVE, at=now + 7_200)
                case "sooner":
                    await broker.alter_scheduled(just, RUN)
                case "edited":
                    await broker.edit_scheduled("a", JobEdit(queue="elsewhere", run_at=now + 5))

            queue = "jobs" if way in ("later", "sooner") else "elsewhere"
            run_at = {"put off": now + 600, "later": now + 7_200, "sooner": wall_clock(), "edited": now + 5}.get(way)
            assert await holder_place(broker) == (queue, pytest.approx(run_at, abs=5))
            assert await stray_ids(broker) == []
            assert await outcome(broker, "b") == "duplicate"

    async def test_a_body_that_is_too_large_for_a_key_is_refused(self, broker: Broker) -> None:
        with pytest.raises(BodyTooLarge, match="4,194,304"):
            await ask(broker, keyed("a", body=b"x" * (MAX_KEYED_BODY + 1)))

    async def test_a_failed_job_waits_for_its_key(self, broker: Broker, worker: Worker, running: Delivery) -> None:
        refused: list[str] = []

        def decide(job: Message) -> Move:
            return Move(requeue(job, queue="jobs"), refused=partial(refused.append, job.id))

        async def requeued() -> int:
            return (await broker.sweep("failed", decide)).moved

        # Its worker stores it in `failed` first, and then writes down that the run is over.
        await broker.publish(replace(fail(running.message, FAILURE, worker="w"), queue="failed"))
        assert (await requeued(), refused) == (0, ["a"])
        await worker.settle(running, Ack(done=False))
        await freed(broker)
        await ask(broker, keyed("b"))

        assert await requeued() == 0
        assert await ids(broker, "failed") == ["a"]
        assert await holders(broker) == [("b", "waiting")]

        await worker.settle(await begun(worker), Ack())
        await freed(broker)
        assert await requeued() == 1
        assert await holders(broker) == [("a", "waiting")]
        assert (await begun(worker)).message.id == "a"

    @pytest.mark.parametrize(
        ("spread", "seconds", "outcomes", "run"),
        [
            (DEBOUNCE, 0.5, ["kept"] * 4, ["job 3"]),
            (THROTTLE, 0.7, ["stored", "kept", "kept", "kept"], ["job 0", "job 3"]),
        ],
    )
    async def test_a_burst_is_its_last_job_and_perhaps_its_first(
        self, broker: Broker, another: Open, spread: str, seconds: float, outcomes: list[str], run: list[str]
    ) -> None:
        async with time_kept(await another()):
            worker = await consume(await another())
            begin = time.time()
            answers = await broker.keys.enqueue(burst(spread, seconds))
            assert [answer.outcome for answer in answers] == outcomes
            assert [answer.displaced for answer in answers[-2:]] == ["job 1", "job 2"]
            assert [(await take_and_ack(worker)).id for _ in run] == run
            assert time.time() - begin >= seconds
            await nothing_for(worker)
        await until(lambda: waiting_keys(broker), [])

    async def test_a_debounced_job_waits_for_the_slowest_clock(self, broker: Broker, another: Open) -> None:
        behind = Behind()
        before = clock.use(behind)
        try:
            async with time_kept(await another()):
                worker = await consume(await another())
                await broker.keys.enqueue(burst(DEBOUNCE, 0.1))
                await nothing_for(worker, within=1.0)
                behind.stands_at = None
                assert (await take(worker)).message.id == "job 3"
        finally:
            clock.use(before)

    async def test_a_stray_is_found(self, broker: Broker) -> None:
        await ask(broker, keyed("a"))
        assert await broker.keys.orphaned() == []

        await self.take_away_behind_our_back(broker)

        await until(lambda: stray_ids(broker), ["a"])

    async def test_the_key_of_a_running_workflow_is_no_stray(
        self, broker: Broker, worker: Worker, running: Delivery
    ) -> None:
        await worker.settle(running, Ack(adds=WAITS))
        await worker.close()
        await ask(broker, keyed("lost", key="lost"), key="lost")
        await self.take_away_behind_our_back(broker)

        await until(lambda: stray_ids(broker), ["lost"])
        await broker.keys.free(["lost"])
        assert await holders(broker) == [("a", "running")]

        await broker.workflows.signal("a", "approved", StoredResult("application/json", b"1"))
        await freed(broker)

    async def take_away_behind_our_back(self, broker: Broker) -> None:
        """Remove the jobs of the queue `jobs` as another program would."""
        raise NotImplementedError


def burst(spread: str, seconds: float) -> list[KeyRequest]:
    """Four enqueues at once."""
    jobs = [message(f"job {n}") for n in range(4)]
    return [KeyRequest(key=KEY, message=job, call=job.id, spread=spread, seconds=seconds) for job in jobs]


async def waiting_keys(broker: Broker) -> list[str]:
    return [key.name for key in await broker.keys.known() if key.next is not None]


async def stray_ids(broker: Broker) -> list[str]:
    return [stray.id for stray in await broker.keys.orphaned()]
