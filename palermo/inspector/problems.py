"""The current problems of queues, workers and jobs, with advice.

`palermo doctor` and the page Problems show the same problems, because both use `present`. The limits are those of the
Prometheus rules in docs/guides/monitoring/alerts.yml. A queue is never late if its first job can't be read. Up to three
similar problems are reported separately, and more as one with all names.
"""

import shlex
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from palermo.contract.broker import Finding
from palermo.contract.rows import Row, silent_text
from palermo.contract.trouble import Trouble
from palermo.core.journal_records import RecordKind
from palermo.core.queue_selection import QueueSelection
from palermo.core.text import count, duration, some_of
from palermo.core.times import parse_instant
from palermo.core.topology import is_failed
from palermo.errors import PalermoError
from palermo.history.statistics import Named
from palermo.history.worker_lives import WorkerLife
from palermo.inspector.rates import Snapshot
from palermo.views.filter import JobFilter

#: Maximum seconds that a queue's first job should wait.
LATE = 900.0

#: Seconds that a due job may wait to be moved to its queue if no worker leads. Another one leads within 3 s.
DUE = 5.0

#: Seconds over which each job's runs are counted, minimum number of runs to judge, and maximum share of runs that may
#: fail permanently or be retried.
COUNTED, FEWEST, FAILING, RETRIED = 600.0, 10, 0.1, 0.5

#: Seconds for which a worker's death counts as a problem.
DEATHS = 3_600.0

#: Maximum number of similar problems that are reported separately.
_APART = 3

#: A problem of a queue: no worker serves it, its workers take no jobs, its first job waits too long, or it is paused
#: and contains jobs.
QueueKind = Literal["unserved", "resting", "late", "paused"]

#: A problem of a job: too many of its runs fail permanently or are retried.
JobKind = Literal["failing", "retried"]

#: The kind of problem, which determines the page with help.
Kind = Literal[QueueKind, JobKind, "trouble", "all paused", "silent", "died", "overdue"]

#: The order of problems in shortened lists of queues.
WORST_FIRST: tuple[QueueKind, ...] = ("unserved", "resting", "late", "paused")

#: The problems of queues and jobs in the order of a report.
_KINDS: tuple[QueueKind | JobKind, ...] = (*WORST_FIRST, "failing", "retried")

#: The states of workers that take no jobs.
_RESTING = ("paused", "quiet", "stopping")


class Outcomes(NamedTuple):
    """The outcomes of a job's runs in the last COUNTED seconds."""

    succeeded: int
    failed: int
    retried: int


def outcomes(jobs: Iterable[Named]) -> dict[str, Outcomes]:
    """Return the outcomes of each job's runs from their tallies."""
    kinds = (RecordKind.SUCCEEDED, RecordKind.FAILED, RecordKind.RETRIED)
    return {each.name: Outcomes(*map(each.tally.number, kinds)) for each in jobs if each.name is not None}


class PresentProblem(Struct, frozen=True):
    """A current problem. Its finding names the affected queues or jobs, or none if all are affected."""

    kind: Kind
    finding: Finding


class _Wrong(NamedTuple):
    """A queue or job with a problem."""

    name: str
    #: Number of a queue's waiting jobs, or of a job's failed or retried runs.
    number: int
    #: Seconds for which the queue's first job has waited.
    age: float = 0.0
    #: The workers that serve the queue but take no jobs, with their states.
    resting: Sequence[str] = ()
    #: Number of all runs of the job.
    runs: int = 0


def present(
    queues: Iterable[Row],
    workers: Sequence[Row],
    *,
    all_paused: bool,
    ages: Mapping[str, float | None],
    jobs: Mapping[str, Outcomes],
    deaths: Sequence[WorkerLife] = (),
    trouble: Trouble | None = None,
    overdue: float = 0.0,
) -> list[PresentProblem]:
    """Return the problems shown by the rows of queues and workers.

    `ages` contains the waiting times of queues' first jobs in seconds, if known. `deaths` are those of the last DEATHS
    seconds. `overdue` is the number of seconds for which a scheduled or recurring job has been due. If the broker is in
    trouble, silent workers and unserved queues aren't reported.
    """
    queues, found = list(queues), list[PresentProblem]()
    if trouble is not None:
        found.append(PresentProblem("trouble", Finding.problem("broker", trouble.cause, trouble.advice)))
    if all_paused:
        found.append(PresentProblem("all paused", _ALL_PAUSED))
    silent = silent_text(workers)
    if silent and trouble is None:
        advice = (
            "Check on its machine whether it is stopped (kill -CONT continues it), swapped out or short of CPU. kill"
            " -9 requeues its jobs immediately."
        )
        found.append(PresentProblem("silent", Finding.warning("workers", silent, advice)))
    if deaths and trouble is None:
        found.append(PresentProblem("died", _of_deaths(deaths)))
    if overdue > DUE and is_leaderless(workers):
        text = f"the first has been due for {duration(overdue)}, but no worker moves it to its queue"
        found.append(PresentProblem("overdue", Finding.warning("scheduled jobs", text, _SCHEDULER)))
    wrong: dict[QueueKind | JobKind, list[_Wrong]] = {kind: [] for kind in _KINDS}
    resting = resting_queues(queues, workers)
    for row in queues:
        age = ages.get(row["name"])
        kind = queue_problem(row, age, resting, all_paused=all_paused)
        if kind is not None and not (kind == "unserved" and trouble is not None):
            wrong[kind].append(_Wrong(row["name"], row["pending"], age or 0.0, resting.get(row["name"], ())))
    for name, ended in sorted(jobs.items()):
        runs = sum(ended)
        if runs >= FEWEST and ended.failed > FAILING * (ended.succeeded + ended.failed):
            wrong["failing"].append(_Wrong(name, ended.failed, runs=runs))
        elif runs >= FEWEST and ended.retried > RETRIED * runs:
            wrong["retried"].append(_Wrong(name, ended.retried, runs=runs))
    for each, those in wrong.items():
        for some in [[one] for one in those] if len(those) <= _APART else [those]:
            found.append(PresentProblem(each, _finding(each, some, silent=bool(silent))))
    return found


def is_leaderless(workers: Iterable[Row]) -> bool:
    """Return whether certainly no worker moves scheduled jobs to their queues."""
    return all(row["clock"] is False for row in workers)


def overdue(
    found: Snapshot, soonest: Callable[[JobFilter], Iterable[Row]], recurring: Callable[[], Iterable[Row]]
) -> float:
    """Return the seconds for which the first scheduled or recurring job has been due; 0 if unknown.

    Jobs are read only if no worker leads, because on RabbitMQ this session then stands in for the leader. Only due jobs
    are listed, because RabbitMQ reads the others for nothing.
    """
    try:
        due_now = JobFilter(due_until=found.at)
        rows = [*soonest(due_now), *recurring()] if found.trouble is None and is_leaderless(found.workers) else []
        due = (row.get("run_at", row.get("next_run")) for row in rows)
        return max((found.at - parse_instant(at) for at in due if at is not None), default=0.0)
    except PalermoError:
        return 0.0


def why_waiting(found: Snapshot, queue: str) -> str:
    """Return why no worker takes jobs from this queue, with advice; "" if one does, or if it is unknown."""
    known = present(
        (row for row in found.queues if row["name"] == queue),
        found.workers,
        all_paused=found.all_paused,
        ages={},
        jobs={},
        trouble=found.trouble,
    )
    return " ".join(
        f"{each.finding.check + ': ' if each.finding.names else ''}{each.finding.text}. {each.finding.advice}"
        for each in known
        if each.kind in (*WORST_FIRST, "all paused")
    )


def grouped(findings: Iterable[Finding]) -> list[Finding]:
    """Combine more than three equal findings about different queues into one, in place of the first."""
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        about, _, name = finding.check.partition(" ")
        key = (finding.check, finding.level, finding.text, finding.advice)
        if about == "queue":
            key = (about, finding.level, finding.text, finding.advice.replace(f" {shlex.quote(name)} ", " QUEUE "))
        alike.setdefault(key, []).append(finding)
    found: list[Finding] = []
    for (_, level, text, advice), those in alike.items():
        if len(those) <= _APART:
            found += those
            continue
        names = tuple(finding.check.partition(" ")[2] for finding in those)
        text = f"{len(names):,} alike, {some_of(names)}: {text}"
        found.append(Finding(check="queues", level=level, text=text, advice=advice, names=names))
    return found


def resting_queues(queues: Iterable[Row], workers: Iterable[Row]) -> dict[str, list[str]]:
    """Return the queues with jobs whose workers all take none, with these workers and their states."""
    answering = [row for row in workers if row["answers"] and row["queues"]]
    idle = [row for row in answering if row["state"] in _RESTING]
    waiting = [row["name"] for row in queues if row["pending"] and row["workers"]] if idle else []
    if not waiting:
        return {}
    selected = {tuple(row["queues"]): QueueSelection.parse(row["queues"]).select(waiting) for row in answering}
    taken = {name for row in answering if row["state"] not in _RESTING for name in selected[tuple(row["queues"])]}
    found: dict[str, list[str]] = {name: [] for name in waiting if name not in taken}
    for row in idle:
        for name in selected[tuple(row["queues"])]:
            if name in found:
                found[name].append(f"{row['id']} is {row['state']}")
    return {name: those for name, those in found.items() if those}


def workers_text(workers: Sequence[Row]) -> str:
    """Describe how many workers are running, that all of them answer, and which of them take no jobs."""
    if not workers:
        return "none is running"
    idle = [f"{row['id']} is {row['state']}" for row in workers if row["state"] in _RESTING]
    text = f"{count(len(workers), 'worker')}, all answering"
    return f"{text}; taking no jobs: {some_of(idle)}" if idle else text


def queue_problem(row: Row, age: float | None, resting: Container[str], *, all_paused: bool) -> QueueKind | None:
    """Return the problem of a queue, or None. A pause of all queues is reported separately.

    `age` is the waiting time of its first job in seconds, if known. `resting` is the result of `resting_queues`.
    """
    if all_paused or not row["pending"] or is_failed(row["name"]):
        return None
    if row["paused"]:
        return "paused"
    if not row["workers"]:
        return "unserved"
    if row["name"] in resting:
        return "resting"
    return "late" if age is not None and age > LATE else None


def mixed(rows: Sequence[Row], order: Callable[[Row], int], *, page: int, most: int) -> list[Row]:
    """Sort rows of queues by `order`, worst first, with at most `most` problem queues per page.

    A page has more than `most` only if no healthy queues with workers are left. Queues that fit on one page keep their
    order.
    """
    if len(rows) <= page:
        return [*rows]
    troubled = [row for row in rows if order(row) < len(WORST_FIRST)]
    served = [row for row in rows[len(troubled) :] if row["workers"]]
    rest = [row for row in rows[len(troubled) :] if not row["workers"]]
    found: list[Row] = []
    while troubled and served:
        few = troubled[: max(most, page - len(served))]
        found += few + served[: page - len(few)]
        troubled, served = troubled[len(few) :], served[page - len(few) :]
    return found + troubled + sorted(served + rest, key=lambda row: str(row["name"]))


_ALL_PAUSED = Finding.warning(
    "pauses", "all queues are paused: no worker takes a job", "To resume them, run palermo resume --all."
)

_SCHEDULER = "Start a worker without --no-scheduler: `palermo worker MODULE`."

_RESUME = (
    "`palermo control resume WORKER` lets a quiet or paused worker take jobs again."
    " A stopping worker ends after its running jobs: start another."
)

_MORE_WORKERS = "Start more workers, or give them more slots with -c. A requeued job keeps its age."

_DEATH = (
    "Check its machine for the cause: kill -9, out of memory or a crash. Its jobs run again on other workers of their"
    " queues. If it only lost its connection, this problem ends when it reconnects."
)

_RETRIED = "A service that it uses may be down. `palermo retries list` shows the errors."

#: The report about one queue or job, with advice.
_ONE: Mapping[QueueKind | JobKind, tuple[str, str]] = {
    "paused": (
        "paused, and {jobs} {wait} in it",
        "To resume it, run `palermo resume {quoted}`. `palermo audit` shows who paused it.",
    ),
    "unserved": (
        "{jobs} {wait}, and no worker{answering} takes jobs from it",
        "Start a worker for it: `palermo worker MODULE -q {quoted}`."
        " If its name is a mistake, `palermo delete {quoted}` removes it with its jobs.",
    ),
    "resting": ("{jobs} {wait}, and no worker takes {them}: {resting}", _RESUME),
    "late": ("its first job has waited for {age}, and {jobs} {wait} in it", _MORE_WORKERS),
    "failing": (
        "{number:,} of {runs} in the last {counted:.0f} minutes failed",
        "`palermo failed groups --job {quoted}` shows the errors; `palermo failed requeue --all --job {quoted}` runs"
        " the jobs again.",
    ),
    "retried": ("{number:,} of {runs} in the last {counted:.0f} minutes failed and will be retried", _RETRIED),
}

#: The report about more than three queues or jobs.
_MANY: Mapping[QueueKind | JobKind, tuple[str, str]] = {
    "paused": (
        "{jobs} wait in {many:,} paused queues: {names}",
        "To resume one, run `palermo resume QUEUE`. `palermo audit` shows who paused them.",
    ),
    "unserved": (
        "{jobs} wait in {many:,} queues that no worker{answering} serves: {names}",
        "Start a worker for them: `palermo worker MODULE -q '*'` serves all queues, `-q 'region-*'` those that begin"
        " with region-. If a name is a mistake, `palermo delete QUEUE` removes the queue with its jobs.",
    ),
    "resting": ("{jobs} wait in {many:,} queues whose workers take no jobs: {names}", _RESUME),
    "late": (
        "{jobs} wait in {many:,} queues whose first job has waited for more than {late:.0f} minutes, up to {age}:"
        " {names}",
        _MORE_WORKERS,
    ),
    "failing": (
        "{number:,} of {runs} of {many:,} jobs in the last {counted:.0f} minutes failed: {names}",
        "`palermo failed groups` shows the errors; `palermo failed requeue --all` runs the jobs again.",
    ),
    "retried": (
        "{number:,} of {runs} of {many:,} jobs in the last {counted:.0f} minutes failed and will be retried: {names}",
        _RETRIED,
    ),
}


def _finding(kind: QueueKind | JobKind, those: Sequence[_Wrong], *, silent: bool) -> Finding:
    """Return the finding about one or more queues or jobs."""
    worst = sorted(those, key=lambda one: (-one.age if kind == "late" else -one.number, one.name))
    first, names = worst[0], tuple(one.name for one in worst)
    number = sum(one.number for one in worst)
    values = {
        "number": number,
        "runs": count(sum(one.runs for one in worst), "run"),
        "jobs": count(number, "job"),
        "wait": "waits" if number == 1 else "wait",
        "them": "it" if number == 1 else "them",
        "quoted": shlex.quote(first.name),
        "resting": some_of(first.resting),
        "age": duration(first.age),
        "many": len(names),
        "names": some_of(names),
        # A silent worker may serve it, since the queues of such a worker aren't always known.
        "answering": " that answers" if silent else "",
        "late": LATE / 60,
        "counted": COUNTED / 60,
    }
    about = "job" if first.runs else "queue"
    check = f"{about}s" if len(names) > 1 else f"{about} {first.name}"
    text, advice = (_MANY if len(names) > 1 else _ONE)[kind]
    return replace(Finding.warning(check, text.format(**values), advice.format(**values)), names=names)


def _of_deaths(deaths: Sequence[WorkerLife]) -> Finding:
    names = tuple(dict.fromkeys(life.id for life in deaths))
    jobs = [f"{run.job or run.id} {run.id}" for life in deaths for run in life.last_jobs]
    text = f"{count(len(deaths), 'worker')} died in the last hour: {some_of(names)}"
    text += f". Running: {some_of(jobs)}" if jobs else ""
    return replace(Finding.warning("workers", text, _DEATH), names=names)
