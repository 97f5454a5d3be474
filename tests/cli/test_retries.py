"""`palermo retries`, and what `palermo scheduled` says of retries."""

import json

from palermo.client.client import Client
from tests.cli.conftest import Palermo
from tests.webui.scheduled_jobs import DAY, due, retrying, schedule


def test_what_waits_to_be_tried_again_is_listed_with_why_and_when(palermo: Palermo, client: Client) -> None:
    schedule(client, retrying("b", DAY, times=3), retrying("a", 100, queue="slow"), due("plain", 50))

    lines = palermo("retries", "list").stdout.splitlines()

    assert lines[0].split() == ["Id", "Due", "Queue", "Job", "Attempt", "Error"]
    assert [line.split()[0] for line in lines[1:]] == ["a", "b"]
    assert lines[2].split()[2:5] == ["mail", "shop.send", "4"]
    assert "ValueError: try 3" in lines[2]
    [row] = json.loads(palermo("retries", "list", "--queue", "slow", "--json").stdout)
    assert (row["id"], row["state"], row["attempts"][0]["message"]) == ("a", "retrying", "try 1")
    assert "no jobs wait to be tried again." in palermo("retries", "list", "--job", "none").stderr


def test_they_are_run_now_or_given_up_one_by_one(palermo: Palermo, client: Client) -> None:
    schedule(client, retrying("a", 100), retrying("b", 100, times=2), due("plain", 100))

    assert palermo("retries", "run", "a").stdout.startswith("a: enqueued, was due ")
    assert palermo("retries", "give-up", "b").stdout == "b: failed.\n"
    assert palermo("retries", "give-up", "plain", code=4).stdout == "plain: fired already or not there.\n"
    failed = json.loads(palermo("failed", "show", "b", "--json").stdout)

    assert ([one["message"] for one in failed["attempts"]], failed["retries"]) == (["try 1", "try 2"], 1)
    assert [row["id"] for row in json.loads(palermo("scheduled", "list", "--json").stdout)] == ["plain"]


def test_all_that_match_are_given_up_when_that_is_confirmed(palermo: Palermo, client: Client) -> None:
    schedule(client, *(retrying(str(n), 100, queue="slow" if n % 2 else "mail") for n in range(5)), due("plain", 100))

    rows = json.loads(palermo("retries", "give-up", "--all", "--queue", "slow", "-y", "--json").stdout)

    assert [(row["id"], row["state"]) for row in rows] == [("1", "failed"), ("3", "failed")]
    palermo("retries", "give-up", "--all", code=2)
    palermo("retries", "run", code=2)
    palermo("retries", "run", "1", "--queue", "slow", code=2)
    assert palermo("retries", "run", "--all", "-y").stdout.count("enqueued") == 3
