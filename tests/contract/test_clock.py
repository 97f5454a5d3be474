"""The clock of the process: how long to sleep until an instant, by clocks that do not go together."""

from collections.abc import Iterator

import pytest

from palermo.contract import clock


class Lagging:
    """A machine whose slowest clock is behind."""

    HERE = 4_096.0

    def __init__(self, behind: float) -> None:
        self._behind = behind

    def now(self) -> float:
        return self.HERE

    def reached(self) -> float:
        return self.HERE - self._behind


@pytest.fixture(autouse=True)
def clock_of_the_process() -> Iterator[None]:
    before = clock._clock
    yield
    clock.use(before)


def test_a_sleep_does_not_last_for_the_lag_of_the_slowest_clock() -> None:
    clock.use(Lagging(0.007))

    assert clock.seconds_until(Lagging.HERE + 5.0) == pytest.approx(5.0)
    assert clock.seconds_until(Lagging.HERE + 0.003) == pytest.approx(0.003)


def test_an_instant_before_the_slowest_clock_is_checked_again_soon() -> None:
    clock.use(Lagging(0.007))

    assert 0 < clock.seconds_until(Lagging.HERE) <= 0.002
    assert clock.seconds_until(Lagging.HERE - 0.0065) == pytest.approx(0.0005)
    assert clock.seconds_until(Lagging.HERE - 0.007) == 0
    assert clock.seconds_until(Lagging.HERE - 60) == 0


def test_a_clock_that_was_set_by_hand_is_slept_for_in_the_same_way() -> None:
    clock.use(Lagging(0.007))

    assert clock.seconds_until(100.0, lambda: 40.0) == pytest.approx(60.0 - 0.007)
    assert clock.seconds_until(100.0, lambda: 100.0) == 0
