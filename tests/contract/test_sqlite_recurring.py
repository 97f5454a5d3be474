"""A recurring job whose entry in the file cannot be read: it fires nothing, and a person can remove or replace it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.brokers.sqlite import SqliteBroker
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.recurring_entries import EntryChange
from palermo.core.address import parse_url
from palermo.errors import NotFound
from tests.contract.recurring import entry, fire, names


@pytest.fixture
def broker(runner: asyncio.Runner, tmp_path: Path) -> Iterator[Broker]:
    broker = runner.run(opened(tmp_path / "jobs.db"))
    yield broker
    runner.run(broker.close())


async def opened(path: Path) -> Broker:
    """A broker with one entry that a later version may have written."""
    broker = await open_broker(SessionParameters(address=parse_url(f"sqlite:///{path}")))
    assert isinstance(broker, SqliteBroker)
    await broker.change_recurring(EntryChange.put(entry()))
    await broker._store.write(lambda db: db.execute("""update recurring set state = '{"version": 99}'"""))
    return broker


async def test_an_entry_that_cannot_be_read_can_be_removed(broker: Broker) -> None:
    assert await names(broker) == []

    await broker.change_recurring(EntryChange.remove("sweep"))

    with pytest.raises(NotFound):
        await broker.change_recurring(EntryChange.remove("sweep"))


async def test_an_entry_that_cannot_be_read_can_be_replaced(broker: Broker) -> None:
    await broker.change_recurring(EntryChange.put(entry()))

    assert await names(broker) == ["sweep"]


async def test_an_entry_that_cannot_be_read_cannot_be_run_or_switched(broker: Broker) -> None:
    with pytest.raises(NotFound):
        await fire(broker, "sweep")
    with pytest.raises(NotFound):
        await broker.change_recurring(EntryChange.switch("sweep", on=False))
