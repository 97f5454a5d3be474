"""The problems of a moment, by rows of queues and workers and by how jobs ended."""

from typing import Any

import pytest

from palermo.inspector.problems import Outcomes, PresentProblem, present


def queue(name: str = "mail", pending: int = 3, workers: int = 1, *, paused: bool = False) -> dict[str, Any]:
    return {"name": name, "pending": pending, "in_progress": 0, "workers": workers, "paused": paused}


def problems(*queues: dict[str, Any], **more: Any) -> list[PresentProblem]:
    known: dict[str, Any] = {"all_paused": False, "ages": {}, "jobs": {}, **more}
    return present(queues, known.pop("workers", []), **known)


@pytest.mark.parametrize(
    ("row", "age", "kinds"),
    [
        (queue(), None, []),
        (queue(pending=0, workers=0), None, []),
        (queue(workers=0), None, ["unserved"]),
        (queue(), 900, []),
        (queue(), 901, ["late"]),
        (queue(workers=0), 901, ["unserved"]),
        (queue(workers=0, paused=True), 901, ["paused"]),
        (queue(pending=0, paused=True), None, []),
        (queue("failed", workers=0), None, []),
        (queue("failed:mail", workers=0), None, []),
    ],
)
def test_a_queue_has_at_most_one_problem(row: dict[str, Any], age: float | None, kinds: list[str]) -> None:
    assert [each.kind for each in problems(row, ages={"mail": age})] == kinds


def test_while_all_queues_are_paused_that_alone_is_said() -> None:
    found = problems(queue(paused=True), queue("images", workers=0), all_paused=True)

    assert [each.kind for each in found] == ["all paused"]


@pytest.mark.parametrize(
    ("outcomes", "kinds"),
    [
        (Outcomes(90, 10, 0), []),
        (Outcomes(90, 11, 0), ["failing"]),
        (Outcomes(0, 9, 0), []),
        (Outcomes(0, 10, 0), ["failing"]),
        (Outcomes(5, 0, 5), []),
        (Outcomes(4, 0, 6), ["retried"]),
        (Outcomes(2, 2, 9), ["failing"]),
    ],
)
def test_a_job_is_judged_by_its_runs_if_there_are_enough(outcomes: Outcomes, kinds: list[str]) -> None:
    assert [each.kind for each in problems(jobs={"shop.send": outcomes})] == kinds


def test_a_finding_says_what_is_wrong_and_what_to_do() -> None:
    [unserved] = problems(queue(pending=1, workers=0))
    [late] = problems(queue(pending=2_000), ages={"mail": 3_600})
    [failing] = problems(jobs={"shop.send": Outcomes(60, 40, 0)})

    assert (unserved.finding.check, unserved.finding.text) == (
        "queue mail",
        "1 job waits, and no worker takes jobs from it",
    )
    assert "palermo worker MODULE -q mail" in unserved.finding.advice
    assert late.finding.text == "its first job has waited for 1 h 0 min, and 2,000 jobs wait in it"
    assert failing.finding.text == "40 of 100 runs in the last 10 minutes failed"
    assert "palermo failed list --job shop.send" in failing.finding.advice


def test_a_command_can_be_pasted_whatever_the_name_in_it() -> None:
    name = "a b; rm -rf $HOME"
    quoted = "'a b; rm -rf $HOME'"

    [unserved] = problems(queue(name, workers=0))
    [paused] = problems(queue(name, paused=True))
    [failing] = problems(jobs={name: Outcomes(60, 40, 0)})

    assert f"`palermo worker MODULE -q {quoted}`" in unserved.finding.advice
    assert f"`palermo resume {quoted}`" in paused.finding.advice
    assert f"`palermo failed list --job {quoted}`" in failing.finding.advice
