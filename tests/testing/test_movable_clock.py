"""The clock that a test moves by hand: delays, retries, recurring jobs, keys and expiry."""

from datetime import UTC, datetime, timedelta

import pytest

from palermo.contract import clock as process_clock
from palermo.errors import JobExpired, OptionInvalid
from palermo.testing import MovableClock, Palermo
from tests.testing import jobs
from tests.testing.jobs import ran


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
