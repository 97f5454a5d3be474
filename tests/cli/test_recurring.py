"""`palermo recurring`."""

import pytest

from tests.cli.conftest import Palermo


def add(palermo: Palermo, name: str = "nightly", *more: str) -> None:
    palermo("recurring", "add", name, "shop.sweep", "-q", "slow", *(more or ("--cron", "0 3 * * *")))


def test_one_is_added_seen_and_removed(palermo: Palermo) -> None:
    add(palermo, "nightly", "--cron", "30 2 * * 1-5", "--tz", "Europe/Rome", "--args", "[1]", "--kwargs", '{"a": 2}')
    add(palermo, "often", "--every", "1m30s", "--missed", "skip")

    nightly, often = palermo.rows("recurring", "list")
    assert {name: value for name, value in nightly.items() if name not in ("next_run", "words")} == {
        "name": "nightly",
        "job": "shop.sweep",
        "queue": "slow",
        "cron": "30 2 * * 1-5",
        "every": None,
        "tz": "Europe/Rome",
        "missed": "once",
        "enabled": True,
        "last_run": None,
        "origin": "runtime",
        "args": [1],
        "kwargs": {"a": 2},
    }
    assert nightly["words"].endswith("(Europe/Rome)")
    assert nightly["next_run"].endswith("Z")
    assert (often["every"], often["cron"], often["words"], often["missed"]) == (90.0, None, "Every 90 seconds", "skip")
    assert palermo.rows("recurring", "show", "often") == often

    palermo("recurring", "remove", "nightly", "often", "--yes")
    assert palermo.rows("recurring", "list") == []


def test_one_is_disabled_enabled_and_run_now(palermo: Palermo) -> None:
    add(palermo)

    palermo("recurring", "disable", "nightly")
    (row,) = palermo.rows("recurring", "list")
    assert (row["enabled"], row["next_run"]) == (False, None)
    assert ", disabled" in palermo("recurring", "list").stdout

    id = palermo("recurring", "run", "nightly").stdout.strip()
    (job,) = palermo.rows("jobs", "slow")
    assert (job["id"], job["job"]) == (id, "shop.sweep")
    assert palermo.rows("recurring", "list")[0]["last_run"] is not None

    palermo("recurring", "enable", "nightly")
    assert palermo.rows("recurring", "list")[0]["enabled"]


@pytest.mark.parametrize("command", ["show", "remove", "enable", "disable", "run"])
def test_a_name_that_is_not_there_is_said_in_one_line(palermo: Palermo, command: str) -> None:
    sure = ["--yes"] if command == "remove" else []
    (line,) = palermo("recurring", command, "nobody", *sure, code=4).stderr.splitlines()

    assert "'nobody'" in line
