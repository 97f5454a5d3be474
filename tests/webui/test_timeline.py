"""A job's page from the records of the journal: the job's steps, and how it ended."""

from typing import Any

import pytest

from palermo.contract.rows import Row
from palermo.history.entry import entry
from palermo.webui.render.job_life import final_state, timeline
from palermo.webui.state.job import FoundJob
from tests.history.written import NOON, ended, enqueued, failed


def life(*records: dict[str, Any]) -> list[Row]:
    return [entry(record, "pid:7@h").step() if record["kind"] != "action" else record for record in records]


def action(what: str, outcome: str = "done", at: str = "2026-11-21T09:00:09Z") -> Row:
    return {"kind": "action", "at": at, "by": "anna", "source": "cli", "action": what, "outcome": outcome}


STARTED = {**ended("a", "started"), "took": None}


AT = "at pid:7@h/worker-2"


@pytest.mark.parametrize(
    ("records", "steps"),
    [
        ([enqueued("a"), ended("a")], ["Enqueued to mail", f"Started {AT}", f"Done {AT}"]),
        ([enqueued("a"), STARTED, ended("a")], ["Enqueued to mail", f"Started {AT}", f"Done {AT}"]),
        (
            [failed("a", "retried", delay=90)],
            [f"Started {AT}", f"Failed builtins.ValueError: no such thing {AT}, tried again in 1 min 30 s"],
        ),
        ([ended("a", "cancelled", took=None, by="anna")], ["Cancelled by anna"]),
        ([ended("a", "discarded", reason="too late")], [f"Started {AT}", "Discarded too late"]),
        ([ended("a", "snoozed", delay=5)], [f"Started {AT}", "Snoozed runs again in 5.0 s"]),
        (
            [{"kind": "limited", "at": NOON, "id": "a", "key": "sync", "limit": 3, "rate": "50/s"}],
            ["Put aside sync may run 3 at once and 50/s"],
        ),
        ([ended("a", "released")], [f"Started {AT}", f"Given back {AT}, which stopped or lost its session"]),
        ([enqueued("a", run_at=NOON + 60)], ["Enqueued to mail, to run at 2026-11-21T09:01:00Z"]),
        ([{"kind": "fired", "at": NOON, "id": "a", "name": "nightly"}], ["Enqueued by the recurring job nightly"]),
        (
            [enqueued("a", instead_of="a")],
            ["Enqueued to mail, in place of the enqueue before it, which had not begun"],
        ),
        ([enqueued("a"), action("cancel", "refused")], ["Enqueued to mail", "Cancel by anna via cli: refused"]),
    ],
)
def test_a_life_is_told_in_steps(records: list[dict[str, Any]], steps: list[str]) -> None:
    events = timeline(FoundJob(id="a", state="failed"), life(*records))

    assert [f"{event.title} {event.detail}" for event in events] == steps


def test_a_short_run_began_when_it_ended_less_what_it_took() -> None:
    events = timeline(FoundJob(id="a", state=""), life(enqueued("a"), ended("a", at=NOON + 10, took=2.5)))

    assert [(event.title, event.at, event.took) for event in events] == [
        ("Enqueued", "2026-11-21T09:00:00Z", None),
        ("Started", "2026-11-21T09:00:07.500Z", 7.5),
        ("Done", "2026-11-21T09:00:10Z", 2.5),
    ]


def test_a_job_that_runs_ends_in_its_run_and_one_that_waits_in_its_wait() -> None:
    told = life(enqueued("a"), STARTED)
    running = FoundJob(id="a", state="running", worker="w", started_at="2026-11-21T09:00:01Z", queue="mail")

    assert [event.title for event in timeline(running, told)] == ["Enqueued", "Running"]
    again = timeline(FoundJob(id="a", state="retrying", queue="mail", due="2026-11-21T10:00:00Z"), told)
    assert [event.title for event in again] == ["Enqueued", "Started", "Next try"]
    gone = timeline(FoundJob(id="a", state=""), told)
    assert gone[-1].title == "Not found any more"
    assert [event.title for event in timeline(FoundJob(id="a", state=""))] == ["Enqueued", "Not found"]


def test_of_progress_the_last_is_told_and_of_lines_none() -> None:
    said = [{**ended("a", "progress"), "fraction": part} for part in (0.1, 0.2, 0.3)]
    told = life(enqueued("a"), *said, {**ended("a", "log"), "text": "a line"})

    assert [event.detail for event in timeline(FoundJob(id="a", state="failed"), told)][1:] == ["30 %"]


@pytest.mark.parametrize(
    ("records", "end"),
    [
        ([enqueued("a")], None),
        ([enqueued("a"), ended("a")], "done"),
        ([failed("a", "retried", delay=5)], None),
        ([failed("a")], "failed"),
        ([failed("a"), action("requeue")], None),
        ([failed("a"), action("requeue", "failed")], "failed"),
        ([failed("a"), action("discard")], "discarded"),
        ([failed("a"), ended("a"), action("requeue")], "done"),
        ([ended("a"), action("cancel")], "done"),
        ([ended("a", "cancelled")], "cancelled"),
        ([ended("a", "snoozed")], None),
    ],
)
def test_the_end_is_what_came_last_whoever_stored_first(records: list[dict[str, Any]], end: str | None) -> None:
    assert final_state(life(*records)) == end
