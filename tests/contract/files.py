"""The embedded broker's file: how a test opens it, and how another program changes it."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from palermo.brokers.sqlite import SqliteBroker
from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.message import Message
from tests.contract.tools import PATIENT, ids


async def opened(path: Path | str) -> SqliteBroker:
    broker = await open_broker(SessionParameters(address=parse_url(f"sqlite:///{path}"), timeout=PATIENT))
    assert isinstance(broker, SqliteBroker)
    return broker


async def fill(path: Path, *sent: Message) -> None:
    broker = await opened(path)
    await broker.publish_many(sent)
    await broker.close()


async def look(path: Path) -> list[str]:
    broker = await opened(path)
    try:
        return await ids(broker)
    finally:
        await broker.close()


def change(path: Path, statement: str, *values: object) -> None:
    db = sqlite3.connect(path)
    with db:
        db.execute(statement, values)
    db.close()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program's transaction."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("begin immediate")
    try:
        yield
    finally:
        db.close()


def fill_the_disk(path: Path) -> None:
    """Let no job end or go back."""
    for event in ("update of holder", "delete"):
        change(path, f"create trigger full_{event[:6]} before {event} on job begin select raise(abort, 'full'); end")


def clear_the_disk(path: Path) -> None:
    for event in ("update", "delete"):
        change(path, f"drop trigger full_{event}")
