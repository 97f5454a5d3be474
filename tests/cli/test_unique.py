"""`palermo unique`, and what the doctor says of keys."""

import json
import sqlite3

from palermo.client.client import Client
from tests.cli.conftest import Palermo


def enqueue(client: Client, key: str) -> str:
    return client.enqueue("shop.sync", [1], unique="until_done", unique_key=key).id


def test_keys_are_listed_and_freed(palermo: Palermo, client: Client) -> None:
    assert palermo("unique", "list").stderr == "no job has a key.\n"
    id = enqueue(client, "eu")
    enqueue(client, "us")

    eu, us = json.loads(palermo("unique", "list", "--json").stdout)

    assert (eu["key"], eu["id"], eu["state"], eu["queue"]) == ("shop.sync:eu", id, "waiting", "jobs")
    assert "shop.sync:us" in palermo("unique", "list").stdout
    assert palermo("unique", "free", "shop.sync:eu").stderr == "freed 1 key.\n"
    assert [row["key"] for row in json.loads(palermo("unique", "list", "--json").stdout)] == [us["key"]]
    assert "palermo unique list" in palermo("unique", "free", "shop.sync:eu", code=4).stderr
    palermo("unique", "free", code=2)
    assert palermo("unique", "list", "--strays").stderr == "no key without its job.\n"
    assert palermo("unique", "free", "--strays").stderr == "freed 0 keys.\n"


def test_the_doctor_finds_keys_without_jobs_and_mends_them(palermo: Palermo, client: Client, url: str) -> None:
    enqueue(client, "eu")
    with sqlite3.connect(url.removeprefix("sqlite:///")) as db:
        db.execute("delete from job")  # as another program would
    db.close()

    said = palermo("doctor", code=1).stdout

    assert "shop.sync:eu" in said
    assert "palermo doctor --mend" in said
    assert len(json.loads(palermo("unique", "list", "--strays", "--json").stdout)) == 1
    assert "freed 1 key" in palermo("doctor", "--mend").stdout
    assert palermo("unique", "list").stderr == "no job has a key.\n"
