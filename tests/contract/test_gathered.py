"""Values that are stored together, and what their callers are told."""

import asyncio
from collections.abc import Sequence

import pytest

from palermo.brokers.features import gathered
from palermo.brokers.features.gathered import Gathered
from palermo.errors import BrokerUnavailable


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

    assert disk.steps == [[1], [2], [1, 1]]


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
