"""The clock of the process: how long to sleep until an instant, by clocks that differ."""

import pytest

from palermo.contract import clock

#: An instant by the clock of the machine, and how far its slowest clock is behind.
HERE, BEHIND = 4_096.0, 0.007


class Lagging:
    def now(self) -> float:
        return HERE

    def reached(self) -> float:
        return HERE - BEHIND


@pytest.mark.parametrize(
    ("ahead", "seconds"),
    [
        *((5.0, 5.0), (0.003, 0.003)),  # a sleep doesn't last for the lag of the slowest clock
        *((0.0, 0.002), (-0.0065, 0.0005)),  # before the slowest clock it is checked again soon
        *((-BEHIND, 0.0), (-60.0, 0.0)),
    ],
)
def test_a_sleep_lasts_until_the_slowest_clock(monkeypatch: pytest.MonkeyPatch, ahead: float, seconds: float) -> None:
    monkeypatch.setattr(clock, "_clock", Lagging())

    assert clock.seconds_until(HERE + ahead) == pytest.approx(seconds)


def test_a_clock_that_was_set_by_hand_is_slept_for_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_clock", Lagging())

    assert clock.seconds_until(100.0, lambda: 40.0) == pytest.approx(60.0 - BEHIND)
    assert clock.seconds_until(100.0, lambda: 100.0) == 0
