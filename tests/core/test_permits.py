"""Permits and rates as those who decide apply them: pure, with a clock of the test's own."""

import random
from bisect import bisect_left
from dataclasses import replace
from itertools import pairwise

import pytest

from palermo.core.message import Message
from palermo.core.permits import (
    EARLY,
    GRACE,
    LATE,
    NEAR,
    SOON,
    Aside,
    Demand,
    Go,
    Pace,
    Permits,
    Rate,
    demand_of,
    put_aside,
)
from palermo.errors import OptionInvalid

NOW = 1_000_000.0
THREE = Demand(key="sync", limit=3)


@pytest.mark.parametrize(
    ("written", "count", "period"),
    [("50/s", 50, 1), ("100/min", 100, 60), ("1000 / h", 1_000, 3_600), ("1/15min", 1, 900), ("3/day", 3, 86_400)],
)
def test_a_rate_is_written_as_people_say_it(written: str, count: int, period: float) -> None:
    assert Rate.parse(written) == Rate(count, period)


@pytest.mark.parametrize("written", ["", "50", "0/s", "50/0s", "-1/s", "50/fortnight", "1.5/s", 50, None, "9999999/s"])
def test_a_rate_that_means_nothing_is_refused(written: object) -> None:
    with pytest.raises(OptionInvalid, match="write 50/s"):
        Rate.parse(written)


@pytest.mark.parametrize(
    ("headers", "demand"),
    [
        ({}, None),
        ({"limit-key": "acme"}, None),
        ({"limit": 3}, Demand(key="j", limit=3)),
        ({"limit": 3, "limit-key": "acme"}, Demand(key="acme", limit=3)),
        ({"rate": "2/s"}, Demand(key="j", rate=Rate(2, 1.0), written="2/s")),
        ({"limit": 0, "rate": "no"}, None),
        ({"limit": True}, None),
        ({"limit": "3", "rate": "2/s"}, Demand(key="j", rate=Rate(2, 1.0), written="2/s")),
    ],
)
def test_what_a_message_asks_for(headers: dict[str, object], demand: Demand | None) -> None:
    assert demand_of(Message(id="1", queue="q", job="j", extra=headers)) == demand


def test_a_turn_is_for_one_run() -> None:
    message = Message(id="1", queue="q", job="j", extra={"rate": "2/s"})

    waiting = put_aside(message, Aside(NOW, turn=True))

    again = demand_of(waiting)
    assert again == Demand(key="j", rate=Rate(2, 1.0), written="2/s", turn=True)
    assert waiting.run_at == NOW
    retried = demand_of(Message(id="1", queue="q", job="j", extra=waiting.extra, retries=1))
    assert retried == Demand(key="j", rate=Rate(2, 1.0), written="2/s")
    assert put_aside(waiting, Aside(NOW)).extra == message.extra


def test_no_more_run_at_once_than_the_limit_says_and_the_next_is_called() -> None:
    permits = Permits(NOW)
    holders = [(f"w{number % 2}", str(number)) for number in range(5)]

    answers = [permits.ask(THREE, holder, NOW) for holder in holders]

    assert answers == [Go()] * 3 + [Aside(NOW + SOON)] * 2
    assert permits.ask(THREE, holders[0], NOW) == Go()
    permits.ended("sync", holders[1], NOW + 1)
    assert permits.call(NOW + 1, lambda _: True) == ["3"]
    # Whoever was not called waits, though only two run.
    assert permits.ask(THREE, ("w1", "9"), NOW + 1) == Aside(NOW + 1 + SOON)
    assert permits.ask(THREE, ("w1", "3"), NOW + 1) == Go()
    assert permits.call(NOW + 1, lambda _: True) == []
    (known,) = permits.known(NOW + 1)
    assert (known.key, known.limit, known.running, known.waiting) == ("sync", 3, 3, 2)


def test_those_far_back_in_a_line_come_back_about_when_they_are_next() -> None:
    permits, one = Permits(NOW), Demand(key="sync", limit=1)
    permits.ask(one, ("w", "first"), NOW)

    waits = [answer.at - NOW for n in range(200) if isinstance(answer := permits.ask(one, ("w", str(n)), NOW), Aside)]

    assert (waits[0], waits[10], waits[-1]) == (SOON, 10.0, LATE)


def test_a_permit_of_a_worker_that_is_gone_is_free_and_one_that_is_asked_for_counts() -> None:
    permits = Permits(NOW)
    for number in range(3):
        permits.ask(THREE, ("dead" if number else "alive", str(number)), NOW)

    permits.learn([("alive", [("sync", "0")]), ("new", [("sync", "7")])], NOW + 0.5)

    assert permits.ask(THREE, ("new", "8"), NOW + 0.5) == Go()
    assert isinstance(permits.ask(THREE, ("new", "9"), NOW + 0.5), Aside)
    # One that a living worker does not know any more has ended, and its word of that was lost; but not at once.
    permits.learn([("alive", []), ("new", [("sync", "7"), ("sync", "8")])], NOW + GRACE / 2)
    assert isinstance(permits.ask(THREE, ("new", "9"), NOW + GRACE / 2), Aside)
    permits.learn([("alive", []), ("new", [("sync", "7"), ("sync", "8")])], NOW + GRACE + 0.1)
    assert permits.ask(THREE, ("new", "9"), NOW + GRACE + 0.1) == Go()


def test_who_begins_to_decide_counts_those_who_asked_another_until_they_ask_again() -> None:
    permits, two = Permits(NOW), Demand(key="sync", limit=2)
    permits.learn([("a", [("sync", "1")]), ("b", [])], NOW, asked=[("b", [("sync", "2")])])

    assert isinstance(permits.ask(two, ("c", "3"), NOW), Aside)
    assert permits.ask(two, ("b", "2"), NOW) == Go()
    assert isinstance(permits.ask(two, ("c", "4"), NOW), Aside)
    # What came of an answer of the other's after all counts as any other.
    fresh = Permits(NOW)
    fresh.learn([("b", [])], NOW, asked=[("b", [("sync", "2"), ("sync", "5")])])
    fresh.learn([("b", [("sync", "2")])], NOW + GRACE + 0.1)
    assert fresh.ask(two, ("c", "3"), NOW + 3) == Go()
    assert isinstance(fresh.ask(two, ("c", "4"), NOW + 3), Aside)


@pytest.mark.parametrize("jitter", [0.0, 0.01, 0.08, 0.5])
def test_a_rate_is_kept_however_late_those_come_that_were_given_turns(jitter: float) -> None:
    rate, pace, chance = Rate(50, 1.0), Pace(), random.Random(5)
    coming = [(NOW, False)] * 1_000
    starts: list[float] = []
    while coming:
        coming.sort(reverse=True)
        now, turn = coming.pop()
        pace, verdict = pace.ask(rate, now, turn=turn)
        if isinstance(verdict, Go):
            assert verdict.wait <= NEAR
            starts.append(now + verdict.wait)
        else:
            coming.append((max(now, verdict.at) + chance.random() * jitter, True))

    gaps = [after - before for before, after in pairwise(starts)]
    assert min(gaps) > rate.gap / 2 - 1e-6
    assert max(bisect_left(starts, begin + 1) - number for number, begin in enumerate(starts)) <= 51
    # 1,000 at 50 a second are 20 s, and what the last ones came late.
    assert 20 * 0.99 < starts[-1] - starts[0] < 20 * 1.02 + 2 * jitter


def test_whoever_comes_new_takes_no_turn_of_those_that_wait() -> None:
    rate, pace = Rate(1, 1.0), Pace()
    pace, first = pace.ask(rate, NOW, turn=False)
    pace, second = pace.ask(rate, NOW, turn=False)
    pace, third = pace.ask(rate, NOW + 1.5, turn=False)
    pace, late = pace.ask(rate, NOW + 1.6, turn=True)

    after_idle = NOW - rate.leeway
    turns = [Aside(after_idle + number * rate.gap - rate.early, turn=True) for number in (1, 2)]
    assert (first, second, third, late) == (Go(), *turns, Go())


def test_a_turn_that_nobody_comes_for_is_for_whoever_comes_where_turns_follow_quickly() -> None:
    rate, pace = Rate(50, 1.0), Pace()
    for _ in range(100):
        pace, _ = pace.ask(rate, NOW, turn=False)

    pace, first = pace.ask(rate, NOW + 1, turn=False)
    pace, second = pace.ask(rate, NOW + 1, turn=False)
    pace, late = pace.ask(rate, NOW + 1, turn=True)

    assert first == Go()
    assert isinstance(second, Aside)
    assert late == Go(pytest.approx(rate.gap - rate.leeway))


def test_who_begins_to_decide_waits_for_what_another_may_have_let_run() -> None:
    permits, slow = Permits(NOW), Demand(key="sync", rate=Rate(1, 10.0), written="1/10s")

    assert permits.ask(slow, ("w", "1"), NOW + 1) == Aside(NOW + Rate(1, 10.0).gap - EARLY, turn=True)
    # But not one that has had its turn from that other: leaders that change often would keep it from running at all.
    assert Permits(NOW).ask(replace(slow, turn=True), ("w", "1"), NOW + 1) == Go()
