"""What tests do: `work`, `work_until_idle`, assertions on what is enqueued, and a clock that they move."""

import asyncio
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import pytest
from msgspec.structs import replace

import palermo as module
from palermo.contract import clock as process_clock
from palermo.errors import ArgumentsInvalid, JobExpired, JobFailed, OptionInvalid, UsageError
from palermo.testing import MovableClock, Palermo
from tests.helpers import eventually
from tests.testing import jobs
from tests.testing.jobs import Broken, ran


def test_work_runs_what_is_due_and_until_idle_what_follows(palermo: Palermo, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.outer.enqueue(2)
    jobs.add.enqueue(1)

    assert palermo.work() == 2
    assert ran == ["outer 2 begins", "outer 2 ends", (1, 2)]
    assert palermo.work() == 1
    assert palermo.work() == 1
    assert palermo.work() == 0
    jobs.outer.enqueue(3)
    assert palermo.work_until_idle() == 4
    palermo.refute_enqueued()
    jobs.mail.enqueue("a")
    jobs.add.enqueue(1)
    assert palermo.work("mail") == 1
    assert ran[-1] == "a"
    palermo.assert_enqueued(jobs.add)
    monkeypatch.setattr("palermo.testing.palermo.MAX_ROUNDS", 5)
    jobs.endless.enqueue()
    with pytest.raises(UsageError, match="endlessly"):
        palermo.work_until_idle()


def test_the_error_of_a_job_is_raised_with_the_traceback_of_the_job(palermo: Palermo) -> None:
    job = jobs.broken.enqueue()

    with pytest.raises(Broken, match="it broke") as caught:
        palermo.work()

    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-2:] == ["broken", "break_down"]
    assert not [name for name in names if name in ("_steps", "call")]
    told = f"Raised by job tests.testing.jobs.broken {job.id} in run 1; it is in the failed queue."
    assert caught.value.__notes__ == [told]
    assert job.status() == "failed"
    assert palermo.work() == 0, "an error is raised once"

    jobs.retried.enqueue(1)
    with pytest.raises(Broken, match="run 1"):
        palermo.work_until_idle()
    assert palermo.work_until_idle() == 0
    assert palermo.assert_enqueued(jobs.retried, 1).attempt == 2


def test_all_jobs_run_before_the_errors_of_several_are_raised_together(palermo: Palermo) -> None:
    jobs.broken.enqueue()
    jobs.add.enqueue(1)
    jobs.broken.enqueue()

    with pytest.raises(BaseExceptionGroup) as caught:
        palermo.work()

    assert [type(error) for error in caught.value.exceptions] == [Broken, Broken]
    assert ran == ["broken", (1, 2), "broken"]


def test_errors_are_collected_if_the_test_says_so(palermo: Palermo) -> None:
    palermo.raise_failures = False
    job = jobs.retried.enqueue()

    for _ in range(3):
        assert palermo.work_until_idle() == 1
        palermo.clock.advance(61)

    assert [(one.id, one.attempt, one.retry_in, str(one.error)) for one in palermo.failures] == [
        (job.id, 1, 60.0, "run 1"),
        (job.id, 2, 60.0, "run 2"),
        (job.id, 3, None, "run 3"),
    ]
    assert [one.will_retry for one in palermo.failures] == [True, True, False]
    assert job.status() == "failed"
    ran.clear()
    jobs.interrupted.enqueue()
    jobs.add.enqueue(1)
    with pytest.raises(KeyboardInterrupt):  # Ctrl-C ends the test at once
        palermo.work()
    assert ran == []


def test_a_job_that_fails_without_a_run_is_a_failure_too(palermo: Palermo) -> None:
    jobs.unique.enqueue_in(60, "a")
    (holder,) = palermo.enqueued()
    stranger = replace(holder.message, id="stranger", run_at=None)
    palermo.client.run(lambda broker: broker.publish(stranger))

    with pytest.raises(JobFailed, match=r"job stranger didn't run: .*DuplicateJob"):
        palermo.work()

    assert [one.id for one in palermo.failures] == ["stranger"]
    assert ran == []


def test_a_running_job_is_cancelled(palermo: Palermo) -> None:
    job = jobs.turns.enqueue()

    def cancel() -> None:
        eventually(lambda: ran)
        palermo.inspector().jobs.cancel(job.id)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(cancel)
        assert palermo.work() == 1

    assert ran == ["turning", "turned"]
    assert job.status() == "cancelled"


@pytest.mark.parametrize("in_loop", [False, True])
def test_jobs_run_in_the_thread_of_the_test(palermo: Palermo, in_loop: bool) -> None:
    async def work() -> int:
        return palermo.work()

    jobs.where.enqueue()
    jobs.coroutine.enqueue("a")

    assert (asyncio.run(work()) if in_loop else palermo.work()) == 2

    # A loop that runs takes no second one in its thread.
    here = threading.current_thread().name
    assert ran == [here, ("a", "palermo-testing-job" if in_loop else here)]


async def test_work_in_an_asyncio_test(palermo: Palermo) -> None:
    here = asyncio.get_running_loop()
    jobs.loops.clear()
    await jobs.in_loop.enqueue_async()
    await jobs.add.enqueue_async(1)

    assert await palermo.work_async() == 2
    assert jobs.loops == [here]
    await jobs.outer.enqueue_async(1)
    assert await palermo.work_until_idle_async() == 2
    await jobs.broken.enqueue_async()
    with pytest.raises(Broken):
        await palermo.work_async()


def test_several_threads_may_work(palermo: Palermo) -> None:
    for number in range(20):
        jobs.add.enqueue(number)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda _: palermo.work_until_idle(), range(3)))

    assert sorted(ran) == [(number, 2) for number in range(20)]


def test_the_default_client_is_lent_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.client.client, "_default", None)
    before = module.connect("sqlite:///:memory:")
    try:
        with Palermo() as palermo:
            assert jobs.add.enqueue(1)
            assert module.connect("amqp://elsewhere.example") is palermo.client
            with Palermo() as second:  # each has a broker of its own
                second.refute_enqueued()
                jobs.add.enqueue(2)
            palermo.assert_enqueued(jobs.add, 1)
            palermo.refute_enqueued(jobs.add, 2)

        assert module.client.client.default_client() is before
        assert before.enqueue(jobs.add.definition, (1,))
    finally:
        before.close()


def test_settings_hold(palermo: Palermo) -> None:
    options: dict[str, Any] = {"default_queue": "ours", "failed_per_queue": True, "serializer": "pickle"}
    for accept, runs in (((), 0), (("pickle",), 1)):
        ran.clear()
        with Palermo(accept=accept, raise_failures=False, **options) as other:
            jobs.broken.enqueue()
            other.work()
            assert [row["queue"] for row in other.inspector().failed.list()] == ["ours"]
        assert len(ran) == runs


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1,), {}), ((1, 2), {}), ((), {"a": 1}), ((1,), {"b": 2}), ((ANY,), {"b": 2}), ((ANY, ANY), {})],
)
def test_a_call_is_found_in_any_form(palermo: Palermo, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    jobs.add.enqueue(1)

    assert palermo.assert_enqueued(jobs.add, *args, **kwargs).args == (1,)
    assert len(palermo.enqueued(jobs.add, *args, **kwargs)) == 1
    with pytest.raises(AssertionError):
        palermo.refute_enqueued(jobs.add, *args, **kwargs)
    for others in ((2,), (1, 3)):
        palermo.refute_enqueued(jobs.add, *others)
    with pytest.raises(ArgumentsInvalid):
        palermo.refute_enqueued(jobs.add, 1, 2, 3)


def test_a_job_may_be_named_and_arguments_are_compared_as_they_arrive(palermo: Palermo) -> None:
    jobs.mail.enqueue("a", copies=("b", "c"))
    assert palermo.assert_enqueued(jobs.mail, "a", copies=("b", "c")).kwargs == {"copies": ("b", "c")}
    palermo.refute_enqueued(jobs.mail, "a")

    jobs.add.enqueue(1)
    palermo.enqueue("elsewhere.job", ("a",), {"b": 1})

    palermo.assert_enqueued("tests.testing.jobs.add", 1, b=2)
    palermo.assert_enqueued("elsewhere.job", "a", b=1)
    palermo.refute_enqueued("elsewhere.job", "b")
    with pytest.raises(TypeError, match="isn't a job"):
        palermo.assert_enqueued(len)


def test_what_is_due_later_and_what_waits_for_a_key_is_found(palermo: Palermo) -> None:
    jobs.add.enqueue_in(timedelta(hours=1), 1)
    jobs.add.options(debounce=60).enqueue(2)
    jobs.add.options(tenant="acme", queue="shared").enqueue(3)

    later = palermo.assert_enqueued(jobs.add, 1)
    assert later.run_at is not None
    assert timedelta(minutes=59) < later.run_at - palermo.clock.time <= timedelta(hours=1)
    assert palermo.assert_enqueued(jobs.add, 2).run_at is not None
    assert palermo.assert_enqueued(jobs.add, 3).tenant == "acme"
    assert len(palermo.enqueued()) == 3
    palermo.inspector().jobs.cancel([palermo.assert_enqueued(jobs.add, number).id for number in (1, 3)])
    for number in (1, 3):
        palermo.refute_enqueued(jobs.add, number)


def test_the_message_shows_what_is_there(palermo: Palermo) -> None:
    with pytest.raises(AssertionError) as caught:
        palermo.assert_enqueued(jobs.add, 1, b=3)
    assert str(caught.value) == "no job tests.testing.jobs.add(1, b=3) is enqueued. Nothing is enqueued."

    palermo.clock.freeze()
    jobs.add.enqueue(1)
    jobs.mail.options(delay=60, tenant="acme").enqueue("ada", copies=("b",))
    with pytest.raises(AssertionError) as caught:
        palermo.assert_enqueued(jobs.add, 7)
    assert str(caught.value) == (
        "no job tests.testing.jobs.add(7) is enqueued. Enqueued jobs:\n"
        "  tests.testing.jobs.add(1) in queue jobs\n"
        "  tests.testing.jobs.mail('ada', copies=('b',)) in queue mail, due in 60 s, tenant acme"
    )

    with pytest.raises(AssertionError) as caught:
        palermo.refute_enqueued(jobs.add)
    assert str(caught.value) == "job tests.testing.jobs.add is enqueued:\n  tests.testing.jobs.add(1) in queue jobs"
    with pytest.raises(AssertionError, match="a job is enqueued"):
        palermo.refute_enqueued()
    jobs.add.enqueue_many([(number,) for number in range(23)])
    with pytest.raises(AssertionError, match="and 5 more"):
        palermo.assert_enqueued(jobs.broken)


def test_a_clock_goes_on_and_is_moved_and_stopped() -> None:
    clock = MovableClock()
    began = clock.now()

    clock.advance(60)
    assert began + 60 <= clock.now() < began + 120
    clock.travel_to(datetime(2030, 1, 1, tzinfo=UTC))
    assert clock.time.date() == datetime(2030, 1, 1).date()
    clock.freeze()
    stopped = clock.now()
    assert clock.now() == stopped
    clock.advance(timedelta(hours=1))
    assert clock.now() == stopped + 3600
    clock.unfreeze()
    assert clock.now() >= stopped + 3600
    with pytest.raises(ValueError, match="can't move the clock back"):
        clock.advance(-1)
    with pytest.raises(OptionInvalid, match="no time zone"):
        clock.travel_to(datetime(2030, 1, 1))


def test_the_clock_of_the_process_comes_back() -> None:
    before = process_clock._clock
    with Palermo() as palermo:
        palermo.clock.advance(1_000_000)
        assert process_clock.now() == pytest.approx(palermo.clock.now(), abs=60)

    assert process_clock._clock is before


def test_a_job_that_is_due_at_once_runs_while_the_clock_stands(palermo: Palermo) -> None:
    palermo.clock.travel_to(datetime(2030, 1, 1, tzinfo=UTC))
    palermo.clock.freeze()
    job = jobs.add.enqueue(1)
    jobs.add.options(retries=1).enqueue(2)

    assert palermo.work() == 2
    assert job.created_at == int(palermo.clock.now())


def test_a_recurring_job_runs_at_its_times_once_it_is_declared(palermo: Palermo) -> None:
    palermo.clock.travel_to(datetime(2030, 1, 1, 12, tzinfo=UTC))
    assert palermo.work() == 0  # none of any module is declared unasked
    palermo.declare_recurring(jobs.nightly)
    assert palermo.work() == 1  # for all the times since the test began
    ran.clear()

    palermo.clock.travel_to(datetime(2030, 1, 2, 2, 59, tzinfo=UTC))
    assert palermo.work() == 0
    palermo.clock.travel_to(datetime(2030, 1, 2, 3, 0, 1, tzinfo=UTC))
    assert palermo.work() == 1
    assert palermo.work() == 0
    assert ran == ["nightly"]


def test_all_may_be_declared_and_missed_times_are_made_up_for(palermo: Palermo) -> None:
    palermo.declare_recurring()

    palermo.clock.advance(180)
    palermo.work()
    assert ran.count("minute") == 3
    names = {row["name"] for row in palermo.inspector().recurring.list()}
    assert {"tests.testing.jobs.nightly", "tests.testing.jobs.every_minute"} <= names


def test_expiry_keys_and_rates_go_by_the_clock(palermo: Palermo) -> None:
    jobs.add.options(expires=60).enqueue(1)
    palermo.clock.advance(61)
    with pytest.raises(JobExpired):
        palermo.work()

    assert jobs.add.options(unique=600).enqueue(1)
    palermo.work()
    assert not jobs.add.options(unique=600).enqueue(1)
    palermo.clock.advance(601)
    assert jobs.add.options(unique=600).enqueue(1)
    palermo.work()

    for number in range(3):
        jobs.add.options(rate="1/min").enqueue(number)

    assert palermo.work_until_idle() == 1
    assert palermo.work_until_idle() == 0
    palermo.clock.advance(62)
    assert palermo.work_until_idle() == 1
    palermo.clock.advance(62)
    assert palermo.work_until_idle() == 1
