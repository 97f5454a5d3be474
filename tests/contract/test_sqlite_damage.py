"""Rows of an SQLite file that another program changed: each is passed over, and all others go on.

Every column of every table gets values of wrong types, read from the schema itself, so new tables are tested too.
"""

import asyncio
import shutil
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import zip_longest
from pathlib import Path

import pytest

from palermo.brokers.sqlite.file import opening
from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from tests.contract.damaging import DAY, everything, fill

#: What another program, or a fault of a disk, may leave in a column, as SQL.
VALUES = ("null", "-1", "'{'", "x'ff'", "cast(x'ff' as text)")


def columns() -> list[tuple[str, str]]:
    """All columns of all tables of a new file, but for what keeps a second machine out."""
    query = """select t.name, c.name from sqlite_master t join pragma_table_info(t.name) c
        where t.type = 'table' and t.name not like 'sqlite_%' and t.name <> 'meta'"""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript((Path(opening.__file__).parent / "schema.sql").read_text(encoding="utf-8"))
        return db.execute(query).fetchall()


def at_once() -> list[list[tuple[str, str]]]:
    """The columns that are damaged at once: one of each table that no other operation reads, and each other alone."""
    apart = ("log", "cancel", "message", "recurring", "limited", "unique_job", "replay")
    found = columns()
    together = zip_longest(*([one for one in found if one[0] == table] for table in apart))
    alone = [[one] for one in found if one[0] not in apart]
    return [*alone, *([one for one in row if one is not None] for row in together)]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with two rows in each table."""
    path = tmp_path_factory.mktemp("damage") / "full.db"
    asyncio.run(make(path))
    return path.with_suffix(".copy.db")


def session(path: Path) -> SessionParameters:
    return SessionParameters(address=parse_url(f"sqlite:///{path}"), keep_events=True)


async def make(path: Path) -> None:
    opened = await fill(session(path))
    db = sqlite3.connect(path)
    with db:
        for name in ("a", "b"):
            values = (name, time.time() + DAY)
            db.execute("insert into message (exchange, channel, body, at) values ('palermo', ?, '{}', ?)", values)
            db.execute("insert into replay values ('palermo', ?, '0 1')", (name,))
            db.execute(
                "insert or ignore into turn (queue, mark) select id, 1 from queue where name = ?", (f"{name}-queue",)
            )
    for table in dict(columns()):
        ((rows,),) = db.execute(f"select count(*) from {table}").fetchall()
        assert rows >= 2, f"{table} has {rows} row(s): fill it here, so that its columns are tested"
    db.execute("vacuum into ?", (str(path.with_suffix(".copy.db")),))
    db.close()
    for broker in opened:
        await broker.close()


@pytest.mark.slow
@pytest.mark.parametrize("damaged", at_once(), ids=lambda damaged: " ".join(map(".".join, damaged)))
def test_a_damaged_row_stops_no_other(full: Path, tmp_path: Path, damaged: list[tuple[str, str]]) -> None:
    def found(value: str) -> list[str]:
        path = tmp_path / f"{VALUES.index(value)}.db"
        shutil.copy(full, path)
        path.chmod(0o600)
        done = [damage(path, table, column, value) for table, column in damaged]
        return [f"{value}: {one}" for one in asyncio.run(everything(session(path)))] if any(done) else []

    with ThreadPoolExecutor() as threads:  # each waits for the disk most of the time
        foreign = [one for each in threads.map(found, VALUES) for one in each]

    assert not foreign, "\n".join(foreign)


def damage(path: Path, table: str, column: str, value: str) -> bool:
    """Put the value into the first row of a table; returns whether its own rules let that be."""
    db = sqlite3.connect(path)
    key = ", ".join(name for name, *_ in db.execute("select name from pragma_table_info(?) where pk", (table,)))
    try:
        with db:
            db.execute(f"update {table} set {column} = {value} where ({key}) = (select {key} from {table} limit 1)")
    except sqlite3.IntegrityError:
        return False
    finally:
        db.close()
    return True
