"""Permits and rates as those who decide apply them: pure, with a clock of the test's own."""

import random
from bisect import bisect_left
from itertools import pairwise

import pytest
from msgspec.structs import replace

from palermo.core import limits
from palermo.core.limits import LimitDemand, PermitTable, Rate, RateState, RunLater, RunNow, demand_of, postponed
from palermo.core.message import Message
from palermo.errors import OptionInvalid

NOW = 1_000_000.0
THREE = LimitDemand(key="sync", limit=3)


def test_a_rate_is_written_as_people_say_it() -> None:
    said = (("50/s", 50, 1), ("100/min", 100, 60), ("1000 / h", 1000, 3600), ("1/15min", 1, 900), ("3/day", 3, 86400))
    for written, count, period in said:
        assert Rate.parse(written) == Rate(count, period)
    for wrong in ("", "50", "0/s", "50/0s", "50/00s", "-1/s", "50/fortnight", "1.5/s", 50, None, "9999999/s"):
        with pytest.raises(OptionInvalid, match="write 50/s"):
            Rate.parse(wrong)


@pytest.mark.parametrize(
    ("headers", "demand"),
    [
        ({}, None),
        ({"limit-key": "acme"}, None),
        ({"limit": 3}, LimitDemand(key="j", limit=3)),
        ({"limit": 3, "limit-key": "acme"}, LimitDemand(key="acme", limit=3)),
        ({"rate": "2/s"}, LimitDemand(key="j", rate=Rate(2, 1.0), written="2/s")),
        ({"limit": 0, "rate": "no"}, None),
        ({"limit": True}, None),
        ({"limit": "3", "rate": "2/s"}, LimitDemand(key="j", rate=Rate(2, 1.0), written="2/s")),
    ],
)
def test_what_a_message_asks_for(headers: dict[str, object], demand: LimitDemand | None) -> None:
    assert demand_of(Message(id="1", queue="q", job="j", extra=headers)) == demand


def test_a_turn_is_for_one_run() -> None:
    message = Message(id="1", queue="q", job="j", extra={"rate": "2/s"})

    waiting = postponed(message, RunLater(NOW, reserved=True))

    assert demand_of(waiting) == LimitDemand(key="j", rate=Rate(2, 1.0), written="2/s", reserved=True)
    assert waiting.run_at == NOW
    retried = demand_of(Message(id="1", queue="q", job="j", extra=waiting.extra, retries=1))
    assert retried == LimitDemand(key="j", rate=Rate(2, 1.0), written="2/s")
    assert postponed(waiting, RunLater(NOW)).extra == message.extra


def test_no_more_run_at_once_than_the_limit_says_and_the_next_is_called() -> None:
    permits = PermitTable(NOW)
    holders = [(f"w{number % 2}", str(number)) for number in range(5)]

    answers = [permits.request(THREE, holder, NOW) for holder in holders]

    assert answers == [RunNow()] * 3 + [RunLater(NOW + limits.MIN_POSTPONEMENT)] * 2
    assert permits.request(THREE, holders[0], NOW) == RunNow()
    permits.run_ended("sync", holders[1], NOW + 1)
    assert permits.offer(NOW + 1, lambda _: True) == ["3"]
    # A job that was not called waits, though only two run.
    assert permits.request(THREE, ("w1", "9"), NOW + 1) == RunLater(NOW + 1 + limits.MIN_POSTPONEMENT)
    assert permits.request(THREE, ("w1", "3"), NOW + 1) == RunNow()
    assert permits.offer(NOW + 1, lambda _: True) == []
    (known,) = permits.listing(NOW + 1)
    assert (known.key, known.limit, known.running, known.waiting) == ("sync", 3, 3, 2)


def test_those_far_back_in_a_line_come_back_about_when_they_are_next() -> None:
    permits, one = PermitTable(NOW), LimitDemand(key="sync", limit=1)
    permits.request(one, ("w", "first"), NOW - 1)

    answers = [permits.request(one, ("w", str(n)), NOW) for n in range(200)]
    waits = [answer.at - NOW for answer in answers if isinstance(answer, RunLater)]

    # Those at its head stay at hand.
    assert waits[0] == waits[10] == limits.MIN_POSTPONEMENT
    assert waits[-1] == 199 / limits.WAIT_PART


def test_a_permit_of_a_lost_worker_is_free_and_a_requested_one_counts() -> None:
    permits = PermitTable(NOW)
    for number in range(3):
        permits.request(THREE, ("dead" if number else "alive", str(number)), NOW)

    permits.sync_running([("alive", [("sync", "0")]), ("new", [("sync", "7")])], NOW + 0.5)

    assert permits.request(THREE, ("new", "8"), NOW + 0.5) == RunNow()
    assert isinstance(permits.request(THREE, ("new", "9"), NOW + 0.5), RunLater)
    # One that a living worker does not know any more has ended, and its word of that was lost; but not at once.
    permits.sync_running([("alive", []), ("new", [("sync", "7"), ("sync", "8")])], NOW + limits.GRACE / 2)
    assert isinstance(permits.request(THREE, ("new", "9"), NOW + limits.GRACE / 2), RunLater)
    permits.sync_running([("alive", []), ("new", [("sync", "7"), ("sync", "8")])], NOW + limits.GRACE + 0.1)
    assert permits.request(THREE, ("new", "9"), NOW + limits.GRACE + 0.1) == RunNow()


def test_a_new_decider_counts_permits_granted_before_it() -> None:
    permits, two = PermitTable(NOW), LimitDemand(key="sync", limit=2)
    permits.sync_running([("a", [("sync", "1")]), ("b", [])], NOW, asked=[("b", [("sync", "2")])])

    assert isinstance(permits.request(two, ("c", "3"), NOW), RunLater)
    assert permits.request(two, ("b", "2"), NOW) == RunNow()
    assert isinstance(permits.request(two, ("c", "4"), NOW), RunLater)
    # What came of an answer of the other's after all counts as any other.
    fresh = PermitTable(NOW)
    fresh.sync_running([("b", [])], NOW, asked=[("b", [("sync", "2"), ("sync", "5")])])
    fresh.sync_running([("b", [("sync", "2")])], NOW + limits.GRACE + 0.1)
    assert fresh.request(two, ("c", "3"), NOW + 3) == RunNow()
    assert isinstance(fresh.request(two, ("c", "4"), NOW + 3), RunLater)


@pytest.mark.parametrize("jitter", [0.0, 0.01, 0.08, 0.5])
def test_a_rate_is_kept_however_late_those_come_that_were_given_turns(jitter: float) -> None:
    rate, rate_state, chance = Rate(50, 1.0), RateState(), random.Random(5)
    coming = [(NOW, False)] * 1_000
    starts: list[float] = []
    while coming:
        coming.sort(reverse=True)
        now, reserved = coming.pop()
        rate_state, decision = rate_state.request(rate, now, reserved=reserved)
        if isinstance(decision, RunNow):
            assert decision.wait <= limits.SLOT_WAIT
            starts.append(now + decision.wait)
        else:
            coming.append((max(now, decision.at) + chance.random() * jitter, True))

    gaps = [after - before for before, after in pairwise(starts)]
    assert min(gaps) > rate.gap / 2 - 1e-6
    assert max(bisect_left(starts, begin + 1) - number for number, begin in enumerate(starts)) <= 51
    # 1,000 at 50 a second are 20 s, and what the last ones came late.
    assert 20 * 0.99 < starts[-1] - starts[0] < 20 * 1.02 + 2 * jitter


def test_whoever_comes_new_takes_no_turn_of_those_that_wait() -> None:
    rate, rate_state = Rate(1, 1.0), RateState()
    rate_state, first = rate_state.request(rate, NOW, reserved=False)
    rate_state, second = rate_state.request(rate, NOW, reserved=False)
    rate_state, third = rate_state.request(rate, NOW + 1.5, reserved=False)
    rate_state, late = rate_state.request(rate, NOW + 1.6, reserved=True)

    after_idle = NOW - rate.leeway
    turns = [RunLater(after_idle + number * rate.gap - rate.early, reserved=True) for number in (1, 2)]
    assert (first, second, third, late) == (RunNow(), *turns, RunNow())


def test_an_unused_turn_goes_to_the_next_that_asks() -> None:
    rate, rate_state = Rate(50, 1.0), RateState()
    for _ in range(100):
        rate_state, _ = rate_state.request(rate, NOW, reserved=False)

    rate_state, first = rate_state.request(rate, NOW + 1, reserved=False)
    rate_state, second = rate_state.request(rate, NOW + 1, reserved=False)
    rate_state, late = rate_state.request(rate, NOW + 1, reserved=True)

    assert first == RunNow()
    assert isinstance(second, RunLater)
    assert late == RunNow(pytest.approx(rate.gap - rate.leeway))


def test_who_begins_to_decide_waits_for_what_another_may_have_let_run() -> None:
    permits, slow = PermitTable(NOW), LimitDemand(key="sync", rate=Rate(1, 10.0), written="1/10s")

    assert permits.request(slow, ("w", "1"), NOW + 1) == RunLater(NOW + Rate(1, 10.0).gap - limits.EARLY, reserved=True)
    # But not one that has had its turn from that other: leaders that change often would keep it from running at all.
    assert PermitTable(NOW).request(replace(slow, reserved=True), ("w", "1"), NOW + 1) == RunNow()


def test_an_asking_job_gets_the_permit_of_a_called_one_that_is_late() -> None:
    permits, one = PermitTable(NOW), LimitDemand(key="sync", limit=1)
    permits.request(one, ("w", "first"), NOW)
    permits.request(one, ("w", "second"), NOW)
    permits.run_ended("sync", ("w", "first"), NOW + 1)
    assert permits.offer(NOW + 1, lambda _: True) == ["second"]

    at_once = permits.request(one, ("w", "third"), NOW + 1)
    later = permits.request(one, ("w", "fourth"), NOW + 1 + 2 * limits.OFFER_HELD_FOR)

    assert isinstance(at_once, RunLater)
    assert later == RunNow()
    # And the one that was called is the next, before those that asked earlier.
    assert isinstance(permits.request(one, ("w", "second"), NOW + 1.5), RunLater)
    permits.run_ended("sync", ("w", "fourth"), NOW + 2)
    assert permits.offer(NOW + 2, lambda _: True) == ["second"]


def test_a_rate_is_over_in_time_and_never_holds_up_for_a_clock_far_ahead() -> None:
    rate = Rate(1, 10.0)
    state, _ = RateState().request(rate, NOW, reserved=False)
    ahead, _ = RateState().request(rate, NOW + 30 * 86_400, reserved=False)
    ahead, _ = ahead.request(rate, NOW + 30 * 86_400, reserved=False)

    assert [state.is_over("1/10s", NOW + seconds) for seconds in (0, 10, 11)] == [False, False, True]
    assert state.request(rate, NOW + 11, reserved=False) == RateState().request(rate, NOW + 11, reserved=False)
    assert RateState().is_over("", NOW)
    assert ahead.request(rate, NOW, reserved=False)[1] == RunNow()


def test_keys_are_forgotten_once_they_hold_nothing_back() -> None:
    table = PermitTable(NOW - 7_200)
    for number in range(100):
        demand = LimitDemand(key=f"k{number}", limit=1, rate=Rate(1, 3_600.0), written="1/h")
        assert table.request(demand, ("w", "a"), NOW) == RunNow(0.0)
        table.run_ended(demand.key, ("w", "a"), NOW + 1)
    assert isinstance(table.request(demand, ("w", "b"), NOW + 2), RunLater)
    table.request(LimitDemand(key="lost", limit=1), ("lost", "a"), NOW)

    table.sync_running([("other", [])], NOW + 10)
    table.offer(NOW + 3_000, lambda _: True)
    assert len(table._keys) == 100
    table.offer(NOW + 3_700, lambda _: True)
    assert list(table._keys) == ["k99"]
    table.offer(NOW + 7_300, lambda _: True)
    assert not table._keys
