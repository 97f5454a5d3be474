"""The doctor names states of unique jobs that another program has changed, on SQLite and Redis."""

import sqlite3
from pathlib import Path

from palermo.client.client import Client
from palermo.contract.unique_jobs import UniqueJob
from palermo.inspector.doctor import broker_findings
from palermo.settings.settings import Settings


def announce(client: Client) -> None:
    unique = UniqueJob(name="shop.unique", options={"unique": "until_done"})
    client.run(lambda broker: broker.keys.announce(["shop.unique"], [unique]))


def assert_named(client: Client, text: str) -> None:
    assert [one.text for one in broker_findings(client) if one.check == "records"] == [text]
    assert client.enqueue("shop.unique").enqueued


def test_the_doctor_names_a_state_in_sqlite_that_cannot_be_read(tmp_path: Path) -> None:
    with Client(Settings(url=f"sqlite:///{tmp_path}/jobs.db")) as client:
        announce(client)
        with sqlite3.connect(tmp_path / "jobs.db") as db:
            db.execute("update unique_job set state = '[1]'")
        db.close()

        assert_named(client, "in table unique_job Palermo passes over 1 row that cannot be read: shop.unique")


def test_the_doctor_names_a_state_in_redis_that_cannot_be_read(redis_url: str, exchange: str) -> None:
    with Client(Settings(url=redis_url, exchange=exchange)) as client:
        announce(client)
        client.run(lambda broker: broker._store.call("HSET", broker._store.key("unique-jobs"), "shop.unique", "[1]"))  # type: ignore[attr-defined]

        assert_named(client, "in the hash unique-jobs Palermo passes over 1 field that cannot be read: shop.unique")
