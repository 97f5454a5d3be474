"""The clock of the process, and values that are stored together, with what their callers are told."""

import asyncio
from collections.abc import Sequence

import pytest

from palermo.brokers.features import gathered
from palermo.brokers.features.gathered import Gathered
from palermo.contract import clock
from palermo.errors import BrokerUnavailable

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


class Disk:
    """Keeps what was stored together, once it may."""

    def __init__(self) -> None:
        self.steps: list[list[int]] = []
        self.error: Exception | None = None
        self.begun = asyncio.Event()
        self.turns = asyncio.Event()
        self.turns.set()

    async def store(self, values: Sequence[int]) -> None:
        self.steps.append(list(values))
        self.begun.set()
        await self.turns.wait()
        if self.error is not None:
            raise self.error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    monkeypatch.setattr(gathered, "_PAUSE", 60.0)
    return Disk()


async def test_values_that_come_during_a_step_share_the_next_one(disk: Disk) -> None:
    values = Gathered(disk.store)
    disk.turns.clear()
    first = values.add(0)
    await disk.begun.wait()
    others = [values.add(1), values.add(2)]
    disk.turns.set()

    await asyncio.gather(first, *others)

    assert disk.steps == [[0], [1, 2]]


async def test_a_value_that_can_wait_goes_with_an_urgent_one_or_a_flush(disk: Disk) -> None:
    values = Gathered(disk.store)
    waits = values.add(0, urgent=False)
    for _ in range(10):
        await asyncio.sleep(0)
    assert disk.steps == []

    await values.add(1)
    again = values.add(2, urgent=False)
    await values.flush()

    assert disk.steps == [[0, 1], [2]]
    assert waits.done()
    assert again.done()


async def test_large_values_are_stored_in_parts(disk: Disk) -> None:
    values = Gathered(disk.store, size=lambda number: number * 524_288)

    await asyncio.gather(*(values.add(number) for number in (1, 2, 1, 1)))

    assert disk.steps == [[1, 2], [1, 1]]


async def test_each_caller_gets_the_error_and_later_values_are_stored(disk: Disk) -> None:
    values = Gathered(disk.store)
    disk.error = BrokerUnavailable("no disk")
    found = await asyncio.gather(values.add(0), values.add(1), return_exceptions=True)
    disk.error = None

    await values.add(2)

    assert [str(one) for one in found] == ["no disk"] * 2
    assert disk.steps == [[0, 1], [2]]


async def test_a_cancelled_caller_does_not_keep_others_from_being_stored(disk: Disk) -> None:
    values = Gathered(disk.store)
    gone, there = values.add(0), values.add(1)
    gone.cancel()

    await there

    assert disk.steps == [[0, 1]]
