"""Listings, the ids and texts that they show, and the commands that change failed jobs, scheduled jobs and queues."""

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from palermo.cli import output, scheduled
from palermo.cli.bulk import run_on_jobs
from palermo.cli.enqueue import enqueue
from palermo.cli.job_ids import chosen_id
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.core.text import safe
from palermo.errors import BrokerUnavailable, IdInvalid
from palermo.inspector.jobs import Jobs
from palermo.inspector.judges import TakenJob
from palermo.inspector.scheduled import ScheduledJobs
from palermo.jobs.options import ENQUEUE_OPTIONS
from tests.cli.conftest import Palermo
from tests.contract.workers import consume
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.webui.scheduled_jobs import due, schedule


def test_text_of_a_job_cannot_drive_the_terminal(palermo: Palermo, client: Client) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e"
    publish_failed(client, (message("1", job=f"a{evil}", preview=evil), failure(text=f"{evil}\n[red]bold[/red]")))

    for arguments in (["jobs", "failed"], ["failed", "list"], ["failed", "show", "1"], ["failed", "groups"]):
        text = palermo(*arguments).stdout
        assert not set("\x1b\x07\r\x9b\u202e").intersection(text)
    assert "[red]bold[/red]" in palermo("failed", "list").stdout
    assert safe("a\x1b[31m\nb\u202e") == "a\\x1b[31m\\nb\\u202e"
    assert safe("a\n\tb", lines=True) == "a\n\tb"


def test_an_id_is_never_broken_over_two_lines_of_a_terminal(palermo: Palermo, monkeypatch: pytest.MonkeyPatch) -> None:
    id = palermo("enqueue", "shop.mail.SendMail", "-q", "slow", "--args", '["ann@example.com"]').stdout.strip()
    monkeypatch.setattr(output, "is_terminal", lambda _: True)

    for columns, first in (("60", "Id: "), ("100", "Id: "), ("160", "Id")):
        monkeypatch.setenv("COLUMNS", columns)
        shown = palermo("jobs", "slow").stdout
        for whole in (id, "shop.mail.SendMail"):
            assert any(whole in line for line in shown.splitlines()), columns
        assert shown.strip().startswith(first)


def test_a_filtered_listing_tells_what_it_did_not_read(
    palermo: Palermo, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, *(message(id, "order 8") for id in "123"))
    monkeypatch.setitem(Jobs.list.__kwdefaults__, "depth", 2)

    shown = palermo("jobs", "mail", "--filter", '"order 8"')

    assert shown.stdout.count("order 8") == 2
    assert shown.stderr == "not searched: 1 job after the first ones.\n"


def test_requeue_to_a_mistyped_queue_asks_and_without_a_yes_does_nothing(
    palermo: Palermo, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(broker: Broker) -> None:
        await consume(broker, "legacy")

    client.run(serve)
    publish_failed(client, (message("1"), failure()))

    assert "Did you mean 'legacy'?" in palermo("failed", "requeue", "1", "--to-queue", "legcy", code=2).stderr
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is not sys.stdout)
    assert "'legcy'" in palermo("failed", "requeue", "1", "--to-queue", "legcy", code=1, stdin="n\n").stderr
    assert palermo.ids("failed", "list") == ["1"]
    assert "legcy" not in palermo("queues", "--json").stdout

    assert palermo("failed", "requeue", "1", "--to-queue", "legacy").stdout == "requeued 1 job.\n"


def test_a_requeue_that_the_broker_ends_says_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    def requeue(which: object, *, on_taken: Callable[[list[TakenJob]], None], **_: object) -> list[TakenJob]:
        on_taken([TakenJob("1", "shop.send", "mail")])
        on_taken([TakenJob("2", "shop.send", "mail")])
        raise BrokerUnavailable("connection lost.")

    with pytest.raises(BrokerUnavailable):
        run_on_jobs("requeue", "requeued", requeue, (), as_json=False)

    assert capsys.readouterr().err.startswith("requeued 2 jobs before the error below.")


def enqueue_for(palermo: Palermo, *when: str) -> str:
    return palermo("enqueue", "shop.resize", "-q", "slow", *when).stdout.strip()


def test_jobs_of_a_period_are_moved_by_an_hour(palermo: Palermo) -> None:
    ids = [enqueue_for(palermo, "--at", f"2030-01-01T0{hour}:00Z") for hour in (1, 2, 3, 4)]
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


def test_enqueue_has_the_options_that_options_takes(palermo: Palermo) -> None:
    taken = {parameter.name for parameter in enqueue.params}

    assert {*ENQUEUE_OPTIONS} - {"delay", "run_at"} <= taken
    for unread in ("[" * 100_000, f"[{'9' * 5_000}]"):
        assert len(palermo("enqueue", "x", "--args", unread, code=2).stderr.splitlines()) == 1


def test_enqueue_warns_of_a_queue_that_no_worker_serves(palermo: Palermo, client: Client) -> None:
    async def with_worker(broker: Broker) -> None:
        await consume(broker, "slow")

    client.run(with_worker)

    assert palermo("enqueue", "shop.sync", "-q", "slow").stderr == ""
    assert "no worker serves queue 'solw'. Did you mean 'slow'?" in palermo("enqueue", "a", "-q", "solw").stderr


def test_a_queue_named_as_a_pattern_can_be_read_and_deleted(palermo: Palermo, client: Client) -> None:
    for name in ("*", "a,b", "!low", "=x"):
        publish(client, message("1", queue=name))

        assert palermo.ids("jobs", name) == ["1"]
        palermo("delete", name, "--yes")
    assert [row["name"] for row in palermo.rows("queues")] == ["failed"]


#: Two ids that begin alike, and one of the user's own that is the beginning of another.
FIRST, SECOND = "7c9e12ab-1111-4111-8111-111111111111", "7c9e12ab-2222-4222-8222-222222222222"
OWN, LONGER = "order-17-paid", "order-17-paid-again"


def test_failed_jobs_are_found_by_the_beginnings_of_their_ids(palermo: Palermo, client: Client) -> None:
    publish_failed(client, *((message(id), failure()) for id in (FIRST, SECOND, OWN, LONGER)))

    assert palermo.rows("failed", "show", FIRST[:10])["id"] == FIRST
    assert f"of 2 ids: {FIRST}, {SECOND}" in palermo("failed", "requeue", FIRST[:8], code=2).stderr
    assert palermo.ids("failed", "list") == [FIRST, SECOND, OWN, LONGER]
    assert palermo("failed", "requeue", SECOND[:10]).stdout == "requeued 1 job.\n"
    assert palermo("failed", "discard", "--yes", FIRST[:8], OWN).stdout == "discarded 2 jobs.\n"
    assert palermo.ids("failed", "list") == [LONGER]


def test_many_ids_that_begin_alike_are_counted() -> None:
    with pytest.raises(IdInvalid, match=r"of 7 ids: order-170, .*, order-174 and 2 more\."):
        chosen_id("order-17", [f"order-17{number}" for number in range(7)])
