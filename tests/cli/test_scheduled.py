"""`palermo scheduled` and `palermo retries`; tests/acceptance/test_time.py has them change what workers do."""

import threading
from typing import Any

import pytest

from palermo.cli import output, scheduled
from palermo.client.client import Client
from palermo.inspector.scheduled import ScheduledJobs
from tests.cli.conftest import Palermo
from tests.webui.scheduled_jobs import due, schedule


def enqueue(palermo: Palermo, *when: str) -> str:
    return palermo("enqueue", "shop.resize", "-q", "slow", *when).stdout.strip()


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
