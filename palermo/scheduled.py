"""Scheduled jobs for the inspector: seen in order of time, cancelled, run now, moved to another instant.

These are methods of palermo.inspector.Inspector, which names them.
"""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from palermo.core.lifecycle import JobState
from palermo.core.topology import check_id
from palermo.moments import Instant, instant
from palermo.rows import SCHEDULED, Listing, Row, job_row
from palermo.rows import instant as shown
from palermo.timetable import CANCEL, MOVE, RUN, Altered, Chosen

if TYPE_CHECKING:
    from palermo.inspector import Inspector

#: The scheduled jobs that are meant: one id, several, or those that a filter matches.
Which = str | Iterable[str] | Chosen

#: What is answered about an id with which nothing was done.
GONE = "fired already or not there"

_DONE = {CANCEL: "cancelled", RUN: "enqueued", MOVE: "moved"}


def scheduled(
    inspector: "Inspector", *, queue: str | None = None, job: str | None = None, offset: int = 0, limit: int = 100
) -> Listing:
    """Jobs that are due later, soonest first; `queue` and `job` may hold `*` and `?`.

    A row is that of a job with the state "scheduled", and `run_at`.
    """
    chosen = Chosen(queue=queue, job=job)
    found = inspector._ask(lambda broker: broker.scheduled(chosen, offset=offset, limit=limit), again=True)
    serializers = inspector._client.serializers
    rows = [
        {**job_row(message, JobState.PENDING, serializers), "state": SCHEDULED, "run_at": shown(message.run_at)}
        for message in found.messages
    ]
    return Listing(rows, found.total)


def cancel_scheduled(inspector: "Inspector", which: Which) -> list[Row]:
    """Have scheduled jobs not run: these ids, or all that a filter matches.

    A row is `id`, `state`, `job`, `queue` and `run_at`. The state is "cancelled", or for an id "fired already or not
    there": then nothing was done, and Inspector.cancel may still stop it. Of coming due and being cancelled exactly
    one happens.
    """
    return _alter(inspector, which, CANCEL)


def run_now(inspector: "Inspector", which: Which) -> list[Row]:
    """Put scheduled jobs into their queues at once; rows as of cancel_scheduled, with the state "enqueued"."""
    return _alter(inspector, which, RUN)


def reschedule(inspector: "Inspector", which: Which, at: Instant) -> list[Row]:
    """Have scheduled jobs run at another instant; rows as of cancel_scheduled, with the state "moved".

    `at` is a datetime with a time zone, or Unix seconds; one that has passed means now. Raises OptionInvalid.
    """
    return _alter(inspector, which, MOVE, instant(at))


def _alter(inspector: "Inspector", which: Which, action: str, at: float | None = None) -> list[Row]:
    chosen, ids = _chosen(which)
    if not ids and not isinstance(which, Chosen):
        return []
    if at is not None and at <= time.time():
        action = RUN
    altered = inspector._ask(lambda broker: broker.alter_scheduled(chosen, action, at=at))
    rows = {one.id: _row(one, _DONE[action], at) for one in altered}
    none = {"job": None, "queue": None, "run_at": None}
    missing = [{"id": id, "state": GONE, **none} for id in ids if id not in rows]
    return [*rows.values(), *missing]


def _chosen(which: Which) -> tuple[Chosen, list[str]]:
    if isinstance(which, Chosen):
        return which, sorted(which.ids or ())
    ids = [which] if isinstance(which, str) else list(dict.fromkeys(which))
    for id in ids:
        check_id(id)
    return Chosen(ids=frozenset(ids)), ids


def _row(altered: Altered, state: str, at: float | None) -> Row:
    return {
        "id": altered.id,
        "state": state,
        "job": altered.job,
        "queue": altered.queue,
        "run_at": shown(altered.run_at if at is None or state != _DONE[MOVE] else at),
    }
