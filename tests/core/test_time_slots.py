"""The time slots that jobs wait in."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palermo.core import time_slots
from palermo.core.message import MAX_SECONDS, Message
from palermo.core.time_slots import TimeSlot, check_due, in_order, is_early, time_slot_of, without_foreign_time
from palermo.errors import OptionInvalid

NOW = 1_800_000_000.0

instants = st.floats(min_value=0, max_value=MAX_SECONDS)
waits = st.floats(min_value=0.001, max_value=20 * 366 * 86_400.0)


def test_each_level_of_slots_divides_the_next_and_opens_as_that_is_reached() -> None:
    levels = time_slots.LEVELS
    for below, level in itertools.pairwise(levels):
        assert level.span % below.span == 0
        assert level.reach > below.reach
        assert level.lead == below.reach
    # Splitting never fills a time slot that is still looked at.
    assert levels[0].span * time_slots.RING > levels[1].lead + levels[1].span + time_slots.KEPT_AFTER_END


@pytest.mark.parametrize(
    ("wait", "level"),
    [
        (-1e9, None),
        (0, None),
        (0.001, 0),
        (59.9, 0),
        (60, 1),
        (3_599, 1),
        (3_600, 2),
        (2 * 86_400, 3),
        (60 * 86_400, 4),
        (3_599 * 86_400, 4),
        (3_600 * 86_400, 5),
        (70_000 * 86_400, 5),
    ],
)
def test_what_is_farther_away_waits_in_longer_time_slots(wait: float, level: int | None) -> None:
    found = time_slot_of(NOW + wait, NOW)

    assert (found and found.level) == level


@given(instants, waits)
def test_an_instant_lies_in_its_time_slot_and_in_all_below_it(now: float, wait: float) -> None:
    due = now + wait
    found = time_slot_of(due, now)
    if found is None:  # a wait too short to make a difference to a float
        assert due == now
        return

    assert TimeSlot.parse(str(found), now) == found
    while True:
        assert found.begins <= due < found.ends
        assert found.opens < found.begins
        if found.shortest:
            break
        inner = found.inner_slot(due)
        assert found.begins <= inner.begins
        assert inner.ends <= found.ends
        found = inner


@given(instants, st.floats(min_value=-time_slots.KEPT_AFTER_END + 10, max_value=360))
def test_a_name_of_the_ring_means_the_turn_that_can_hold_jobs(now: float, away: float) -> None:
    index = max(0, int((now + away) // time_slots.LEVELS[0].span))
    found = TimeSlot(0, index)

    assert TimeSlot.parse(str(found), now) == found


@pytest.mark.parametrize(
    "text", ["", "1", "1.", "a.b", "9.1", "-1.5", "1.-5", "01.5", "1.5.2", "0.64", "5." + "9" * 300, "1.٣"]
)
def test_other_names_are_none_of_ours(text: str) -> None:
    with pytest.raises(ValueError, match="names no time slot"):
        TimeSlot.parse(text, NOW)


def test_time_slots_are_ordered_and_the_shortest_is_not_split() -> None:
    day, hour, near = TimeSlot(3, 1), TimeSlot(2, 24), TimeSlot(0, 8_640)

    with pytest.raises(ValueError, match="lowest level"):
        near.inner_slot(15.0)

    assert in_order(iter([day, hour, near])) == [near, hour, day]
    assert in_order(iter([TimeSlot(0, 8_641), day])) == [day, TimeSlot(0, 8_641)]


def test_what_is_no_instant_is_refused_and_a_moved_job_expires_later() -> None:
    assert check_due(5) == 5.0
    for due in (math.nan, math.inf, -math.inf, True, "tomorrow", None, 0, -5.0, MAX_SECONDS):
        with pytest.raises(OptionInvalid):
            check_due(due)

    message = Message(id="7c9e", queue="jobs", job="x.y", run_at=NOW, expires_at=NOW + 60)
    later = time_slots.moved_to(message, NOW + 500)
    assert (later.run_at, later.expires_at) == (NOW + 500, NOW + 560)


def test_another_program_s_time_is_taken_over_into_our_own_header() -> None:
    message = Message(id="7c9e", queue="jobs", job="x.y", run_at=NOW, extra={time_slots.FOREIGN: NOW, "tenant": "a"})

    assert is_early(message, NOW - 1)
    assert not is_early(message, NOW)
    ours = without_foreign_time(message)
    assert (ours.run_at, ours.extra) == (NOW, {"tenant": "a"})
    assert not is_early(ours, NOW - 1)
