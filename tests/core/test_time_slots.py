"""The time slots that jobs wait in."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from palermo.core.message import MAX_SECONDS, Message
from palermo.core.time_slots import (
    FOREIGN,
    KEPT_AFTER_END,
    LEVELS,
    RING,
    TimeSlot,
    check_due,
    in_ms,
    in_order,
    is_early,
    moved_to,
    time_slot_of,
    without_foreign_time,
)
from palermo.errors import OptionInvalid

NOW = 1_800_000_000.0

instants = st.floats(min_value=0, max_value=MAX_SECONDS)
waits = st.floats(min_value=0.001, max_value=20 * 366 * 86_400.0)


def test_each_level_of_slots_divides_the_next_and_opens_as_that_is_reached() -> None:
    for below, level in itertools.pairwise(LEVELS):
        assert level.span % below.span == 0
        assert level.reach > below.reach
        assert level.lead == below.reach


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


def parts(due: float, count: int) -> list[TimeSlot]:
    """The first parts that a job due then may go into."""
    found = [TimeSlot(1, int(due // 300))]
    for _ in range(count):
        found.append(found[-1].next_part(due))
    return found[1:]


def test_parts_of_a_slot_get_shorter_down_to_a_millisecond() -> None:
    slot = TimeSlot(1, 5_986_200)

    found = parts(slot.begins + 133.25, 10)

    lengths = [round(part.ends - part.begins, 4) for part in found]
    assert lengths == [60, 10, 2, 0.5, 0.1, 0.02, 0.005, 0.001, 0.001, 0.001]
    assert [round(part.begins - slot.begins, 3) for part in found] == [120, 130, 132, 133, 133.2, 133.24] + 4 * [133.25]
    assert str(found[2]) == "1.31320000000000005986200"
    assert len({str(part) for part in found}) == 10


@given(instants)
def test_a_part_holds_its_jobs_and_opens_as_early_as_its_slot(due: float) -> None:
    for part in parts(due, 10):
        assert in_ms(part.begins) <= in_ms(due) <= in_ms(part.ends)
        assert part.opens <= due - LEVELS[1].lead + 0.001
        assert part.inner_slot(due) == TimeSlot(1, part.index).inner_slot(due)
        assert TimeSlot.parse(str(part), NOW) == part


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("before", [0, *(part.part for part in parts(1_795_860_133.25, 10))])
def test_a_part_without_times_has_all_times_of_its_slot(before: int, level: int) -> None:
    slot = TimeSlot(level, 5_986_200)
    for part in (before + 1, before + 99):
        found = TimeSlot.parse(f"{level}.{part}000005986200", NOW)

        assert found == replace(slot, part=part)
        assert (found.begins, found.ends) == (slot.begins, slot.ends)


@given(instants, st.floats(min_value=-KEPT_AFTER_END + 10, max_value=360))
def test_a_name_of_the_ring_means_the_turn_that_can_hold_jobs(now: float, away: float) -> None:
    index = max(0, int((now + away) // LEVELS[0].span))
    found = TimeSlot(0, index)

    assert TimeSlot.parse(str(found), now) == found


def test_splitting_never_fills_a_time_slot_that_is_still_looked_at() -> None:
    ahead = LEVELS[1].lead + LEVELS[1].span

    assert LEVELS[0].span * RING > ahead + KEPT_AFTER_END


@pytest.mark.parametrize(
    "text", ["", "1", "1.", "a.b", "9.1", "-1.5", "1.-5", "01.5", "1.5.2", "0.64", "5." + "9" * 300, "0.1000000000005"]
)
def test_other_names_are_none_of_ours(text: str) -> None:
    with pytest.raises(ValueError, match="names no time slot"):
        TimeSlot.parse(text, NOW)


def test_the_shortest_time_slot_is_not_split() -> None:
    with pytest.raises(ValueError, match="lowest level"):
        TimeSlot(0, 1).inner_slot(15.0)


def test_time_slots_are_ordered_by_what_they_hold() -> None:
    day, hour, near = TimeSlot(3, 1), TimeSlot(2, 24), TimeSlot(0, 8_640)

    assert in_order(iter([day, hour, near])) == [near, hour, day]
    assert in_order(iter([TimeSlot(0, 8_641), day])) == [day, TimeSlot(0, 8_641)]


@pytest.mark.parametrize("due", [math.nan, math.inf, -math.inf, True, "tomorrow", None, 0, -5.0, MAX_SECONDS])
def test_what_is_no_instant_is_refused_by_its_value(due: object) -> None:
    assert check_due(5) == 5.0
    with pytest.raises(OptionInvalid):
        check_due(due)


def test_a_job_that_is_moved_expires_as_long_after_it_is_due_as_before() -> None:
    message = Message(id="7c9e", queue="jobs", job="x.y", run_at=NOW, expires_at=NOW + 60)

    later = moved_to(message, NOW + 500)

    assert (later.run_at, later.expires_at) == (NOW + 500, NOW + 560)


def test_another_program_s_time_is_taken_over_into_our_own_header() -> None:
    message = Message(id="7c9e", queue="jobs", job="x.y", run_at=NOW, extra={FOREIGN: NOW, "tenant": "a"})

    assert is_early(message, NOW - 1)
    assert not is_early(message, NOW)
    ours = without_foreign_time(message)
    assert (ours.run_at, ours.extra) == (NOW, {"tenant": "a"})
    assert not is_early(ours, NOW - 1)
