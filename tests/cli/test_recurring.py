"""`palermo recurring`."""

import json
from typing import Any

import pytest

from tests.cli.conftest import Palermo


def rows(palermo: Palermo) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(palermo("recurring", "list", "--json").stdout)
    return found


def add(palermo: Palermo, name: str = "nightly", *more: str) -> None:
    palermo("recurring", "add", name, "shop.sweep", "-q", "slow", *(more or ("--cron", "0 3 * * *")))


def test_one_is_added_seen_and_removed(palermo: Palermo) -> None:
    assert palermo("recurring", "list").stderr == "no recurring jobs.\n"

    add(palermo, "nightly", "--cron", "30 2 * * 1-5", "--tz", "Europe/Rome", "--args", "[1]", "--kwargs", '{"a": 2}')
    add(palermo, "often", "--every", "1m30s", "--missed", "skip")

    nightly, often = rows(palermo)
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
    table = palermo("recurring", "list").stdout
    assert "Every 90 seconds" in table
    assert nightly["next_run"] in table
    assert json.loads(palermo("recurring", "show", "often", "--json").stdout) == often
    assert "words: Every 90 seconds" in palermo("recurring", "show", "often").stdout

    palermo("recurring", "remove", "nightly", "often", "--yes")
    assert rows(palermo) == []


def test_one_is_disabled_enabled_and_run_now(palermo: Palermo) -> None:
    add(palermo)

    palermo("recurring", "disable", "nightly")
    (row,) = rows(palermo)
    assert (row["enabled"], row["next_run"]) == (False, None)
    assert ", disabled" in palermo("recurring", "list").stdout

    id = palermo("recurring", "run", "nightly").stdout.strip()
    (job,) = json.loads(palermo("jobs", "slow", "--json").stdout)
    assert (job["id"], job["job"]) == (id, "shop.sweep")
    assert rows(palermo)[0]["last_run"] is not None

    palermo("recurring", "enable", "nightly")
    assert rows(palermo)[0]["enabled"]


@pytest.mark.parametrize("command", ["show", "remove", "enable", "disable", "run"])
def test_a_name_that_is_not_there_is_said_in_one_line(palermo: Palermo, command: str) -> None:
    sure = ["--yes"] if command == "remove" else []
    result = palermo("recurring", command, "nobody", *sure, code=4)

    assert result.stderr.count("\n") == 1
    assert "'nobody'" in result.stderr


@pytest.mark.parametrize(
    "times",
    [
        [],
        ["--cron", "* * * * *", "--every", "5"],
        ["--cron", "61 * * * *"],
        ["--cron", "0 0 31 2 *"],
        ["--every", "0.2s"],
        ["--every", "often"],
        ["--cron", "* * * * *", "--tz", "Mars/Base"],
        ["--every", "5", "--missed", "sometimes"],
        ["--every", "5", "--args", "{}"],
        ["--every", "5", "-q", "failed"],
    ],
)
def test_a_time_that_means_nothing_is_wrong_usage_in_one_line(palermo: Palermo, times: list[str]) -> None:
    result = palermo("recurring", "add", "x", "shop.sweep", *times, code=2)

    assert result.stderr.count("\n") == 1
    assert rows(palermo) == []
