"""`palermo scheduled` and `palermo retries`; tests/acceptance/test_time.py has them change what workers do."""

import threading
from typing import Any

import pytest

from palermo.cli import output, scheduled
from palermo.client.client import Client
from palermo.inspector.scheduled import ScheduledJobs
from tests.cli.conftest import Palermo
from tests.webui.scheduled_jobs import due, retrying, schedule


def enqueue(palermo: Palermo, *when: str) -> str:
    return palermo("enqueue", "shop.resize", "-q", "slow", *when).stdout.strip()


def test_the_question_says_how_many_are_retries(
    palermo: Palermo, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(client, due("a", 100, 7), due("b", 100), retrying("again", 200, 7), retrying("slow", 200, queue="slow"))
    monkeypatch.setattr(output, "is_terminal", lambda _: True)

    def asked(*command: str) -> str:
        return palermo("scheduled", *command, code=1, stdin="n\n").stderr

    assert "Cancel 4 scheduled jobs (2 of them retries of failed jobs)?" in asked("cancel", "--all")
    assert "Run 1 scheduled job (a retry of a failed job)?" in asked("run", "--all", "--queue", "slow")
    some = ("--job", "shop.send", "--args", "[7]")
    assert "Cancel 2 scheduled jobs (1 of them a retry of a failed job)?" in asked("cancel", "--all", *some)


def test_jobs_of_a_period_are_moved_by_an_hour(palermo: Palermo) -> None:
    ids = [enqueue(palermo, "--at", f"2030-01-01T0{hour}:00Z") for hour in (1, 2, 3, 4)]
    stretch = ("--due-from", "2030-01-01T02:00Z", "--due-until", "2030-01-01T03:30Z")

    assert palermo.ids("scheduled", "list", *stretch) == ids[1:3]
    moved = palermo("scheduled", "move", "--all", *stretch, "--later", "1h30m", "-y").stdout

    assert sorted(moved.splitlines()) == sorted(
        [f"{ids[1]}: moved, due 2030-01-01T03:30:00Z.", f"{ids[2]}: moved, due 2030-01-01T04:30:00Z."]
    )
    assert palermo("scheduled", "move", ids[0], "--later", "30m").stdout.endswith("due 2030-01-01T01:30:00Z.\n")
    palermo("scheduled", "cancel", "--all", "--due-until", "2030-01-01T03:59Z", "-y")
    left = palermo.rows("scheduled", "list")
    assert [row["run_at"] for row in left] == ["2030-01-01T04:00:00Z", "2030-01-01T04:30:00Z"]


def test_a_filter_by_error_or_text_lists_and_changes_scheduled_jobs(palermo: Palermo, client: Client) -> None:
    schedule(client, due("a", 100, "Order 7"), retrying("b", 200), retrying("c", 300, times=2), due("d", 400))

    assert palermo.ids("scheduled", "list", "--filter", "error:keyerror") == ["c"]
    assert palermo.ids("scheduled", "list", "--filter", '"order 7" due_until:1h') == ["a"]
    assert palermo.ids("scheduled", "list", "--filter", "state:scheduled", "--page", "2", "--limit", "1") == ["d"]
    assert palermo("retries", "give-up", "--all", "--error", "Value", "-y").stdout == "b: failed.\n"
    assert palermo("scheduled", "run", "--all", "--filter", "state:failed", "-y", code=4).stdout == ""
    assert palermo.ids("scheduled", "list") == ["a", "c", "d"]


def test_those_with_the_same_arguments_are_cancelled(palermo: Palermo) -> None:
    def one(*arguments: str) -> str:
        return enqueue(palermo, "--in", "1h", *arguments)

    one("--args", '["a.png"]')
    wanted = one("--args", '["b.png"]', "--kwargs", '{"width": 9}')
    one("--args", '["b.png"]')
    cancel = ("scheduled", "cancel", "--all", "--job", "shop.resize", "--args", '["b.png"]', "-y")

    done = palermo(*cancel, "--kwargs", '{"width": 9}')
    assert done.stdout == f"{wanted}: cancelled, was due {done.stdout.partition('due ')[2]}"

    assert wanted not in palermo.ids("scheduled", "list")
    assert palermo(*cancel, "--kwargs", '{"width": 9}', code=4).stdout == ""
    assert palermo(*cancel).stdout.count("cancelled") == 1
    assert len(palermo.ids("scheduled", "list")) == 1


def test_a_long_listing_shows_how_many_it_read(
    palermo: Palermo, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule(client, due("a", 100))
    asked, shown, read = threading.Event(), threading.Event(), ScheduledJobs.list

    def progress(_: ScheduledJobs) -> tuple[int, int]:
        (shown if asked.is_set() else asked).set()
        return 3, 7

    def slow(*given: Any, **more: Any) -> Any:
        assert shown.wait(60)
        return read(*given, **more)

    monkeypatch.setattr(scheduled, "_ASK_EVERY", 0.01)
    monkeypatch.setattr(output, "_EVERY", 0.0)
    monkeypatch.setattr(ScheduledJobs, "progress", progress)
    monkeypatch.setattr(ScheduledJobs, "list", slow)

    listed = palermo("scheduled", "list")

    assert "3 of 7" in listed.stderr
    assert "shop.send" in listed.stdout
