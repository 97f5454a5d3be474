"""The problems of queues, workers and jobs at this moment, each with advice.

`palermo doctor` and the page Problems say the same, because both ask `present`. The limits are those with which the
Prometheus rules in docs/guides/monitoring/alerts.yml begin. A queue whose first job cannot be looked at is never late.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from palermo.contract.broker import Finding
from palermo.contract.rows import Row, silent_text
from palermo.core.journal_records import RecordKind
from palermo.core.text import count, duration
from palermo.core.topology import is_failed
from palermo.history.statistics import Named

#: Seconds that the first job of a queue may wait.
LATE = 900.0

#: Seconds over which the runs of each job are counted; the fewest runs that are judged; and the greatest parts of them
#: that may fail for good, and that may be tried again.
COUNTED, FEWEST, FAILING, RETRIED = 600.0, 10, 0.1, 0.5

#: What is wrong with a queue: no worker takes its jobs, its first job waits too long, or it is paused with jobs.
QueueKind = Literal["unserved", "late", "paused"]

#: What is wrong: it says which page helps.
Kind = Literal[QueueKind, "all paused", "silent", "failing", "retried"]

#: The order in which lists of some of many queues show those with problems.
WORST_FIRST: tuple[QueueKind, ...] = ("unserved", "late", "paused")


class Outcomes(NamedTuple):
    """How the runs of one job ended, in the last COUNTED seconds."""

    succeeded: int
    failed: int
    retried: int


def outcomes(jobs: Iterable[Named]) -> dict[str, Outcomes]:
    """How the runs of each job ended, by their tallies."""
    kinds = (RecordKind.SUCCEEDED, RecordKind.FAILED, RecordKind.RETRIED)
    return {each.name: Outcomes(*map(each.tally.number, kinds)) for each in jobs if each.name is not None}


class PresentProblem(Struct, frozen=True):
    """One thing that is wrong."""

    kind: Kind
    finding: Finding
    #: The queue or the job that it is about; "" for all.
    name: str = ""


def present(
    queues: Iterable[Row],
    workers: Sequence[Row],
    *,
    all_paused: bool,
    ages: Mapping[str, float | None],
    jobs: Mapping[str, Outcomes],
) -> list[PresentProblem]:
    """What is wrong, by the rows of queues and workers.

    `ages` are the seconds that the first job of each queue has waited, as far as that is known.
    """
    found: list[PresentProblem] = []
    if all_paused:
        advice = "palermo resume --all ends that."
        finding = Finding.warning("pauses", "all queues are paused: no worker takes a job", advice)
        found.append(PresentProblem("all paused", finding))
    if silent := silent_text(workers):
        advice = (
            "Look on its machine whether it is stopped (kill -CONT goes on), swapped out or short of CPU; kill -9 gives"
            " its jobs back at once."
        )
        found.append(PresentProblem("silent", Finding.warning("workers", silent, advice)))
    for row in queues:
        age = ages.get(row["name"])
        if (kind := queue_problem(row, age, all_paused=all_paused)) is not None:
            found.append(PresentProblem(kind, _finding(kind, row, age, silent=bool(silent)), row["name"]))
    found += filter(None, (_of_job(job, ended) for job, ended in sorted(jobs.items())))
    return found


def queue_problem(row: Row, age: float | None, *, all_paused: bool) -> QueueKind | None:
    """What is wrong with a queue; None if nothing is, or if all queues are paused, which is one problem for all.

    `age` is how many seconds its first job has waited, if that is known.
    """
    if all_paused or not row["pending"] or is_failed(row["name"]):
        return None
    if row["paused"]:
        return "paused"
    if not row["workers"]:
        return "unserved"
    return "late" if age is not None and age > LATE else None


def _finding(kind: QueueKind, row: Row, age: float | None, *, silent: bool) -> Finding:
    name, waiting = row["name"], count(row["pending"], "job")
    verb = "waits" if row["pending"] == 1 else "wait"
    match kind:
        case "paused":
            text = f"paused, and {waiting} {verb} in it"
            advice = f"`palermo resume {shlex.quote(name)}` if it was forgotten. `palermo audit` says who paused it."
        case "unserved":
            # One that does not answer may serve it: it is not always known which queues it serves.
            text = f"{waiting} {verb}, and no worker{' that answers' if silent else ''} takes jobs from it"
            quoted = shlex.quote(name)
            advice = (
                f"Start a worker for it: `palermo worker MODULE -q {quoted}`."
                f" If its name is a mistake, `palermo delete {quoted}` removes it with its jobs."
            )
        case "late":
            text = f"its first job has waited for {duration(age or 0.0)}, and {waiting} {verb} in it"
            advice = (
                "Start more workers, or give them more slots with -c. A job that was requeued is as old as it ever was."
            )
    return Finding.warning(f"queue {name}", text, advice)


def _of_job(job: str, outcomes: Outcomes) -> PresentProblem | None:
    runs = sum(outcomes)
    if runs < FEWEST:
        return None
    check, within = f"job {job}", f"of {count(runs, 'run')} in the last {COUNTED / 60:.0f} minutes"
    if outcomes.failed > FAILING * (outcomes.succeeded + outcomes.failed):
        listed = f"palermo failed list --job {shlex.quote(job)}"
        advice = f"`{listed}` has the errors; `palermo failed requeue` runs the jobs again."
        return PresentProblem("failing", Finding.warning(check, f"{outcomes.failed:,} {within} failed", advice), job)
    if outcomes.retried > RETRIED * runs:
        advice = "Perhaps something that it needs is away. `palermo retries list` has the errors."
        return PresentProblem(
            "retried", Finding.warning(check, f"{outcomes.retried:,} {within} are tried again", advice), job
        )
    return None
