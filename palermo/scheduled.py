"""Scheduled jobs for the inspector: seen in order of time, cancelled, run now, moved, and retries given up.

These are methods of palermo.inspector.Inspector, which names them. A job that has failed and waits to be
tried again is a scheduled job with an error: `retries` tells them apart.
"""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from palermo.core.lifecycle import JobState
from palermo.core.topology import check_id
from palermo.moments import Instant, instant
from palermo.rows import SCHEDULED, Listing, Row, job_row
from palermo.rows import instant as shown
from palermo.timetable import CANCEL, GIVE_UP, MOVE, RUN, Altered, Chosen

if TYPE_CHECKING:
    from palermo.inspector import Inspector

#: The scheduled jobs that are meant: one id, several, or those that a filter matches.
Which = str | Iterable[str] | Chosen

#: What is answered about an id with which nothing was done.
GONE = "fired already or not there"

#: What is answered about a job, by what was done to it.
_CALLED = {CANCEL: "cancel scheduled", RUN: "run now", MOVE: "reschedule", GIVE_UP: "give up"}
DONE = {CANCEL: "cancelled", RUN: "enqueued", MOVE: "moved", GIVE_UP: "failed"}


def scheduled(
    inspector: "Inspector",
    *,
    queue: str | None = None,
    job: str | None = None,
    retries: bool | None = None,
    offset: int = 0,
    limit: int = 100,
) -> Listing:
    """Jobs that are due later, soonest first; `queue` and `job` may hold `*` and `?`.

    A row is that of a job with the state "scheduled", or "retrying" for one that has failed and waits to be tried
    again, and `run_at`. With `retries` only those are listed, with `retries=False` only the others.
    """
    return listed(inspector, Chosen(queue=queue, job=job, retries=retries), offset=offset, limit=limit)


def listed(inspector: "Inspector", chosen: Chosen, *, offset: int = 0, limit: int = 100) -> Listing:
    """The same for what is chosen: ids too."""
    found = inspector._ask(lambda broker: broker.scheduled(chosen, offset=offset, limit=limit), again=True)
    rows = [job_row(message, JobState.PENDING, inspector._client.serializers) for message in found.messages]
    for row in rows:
        if row["state"] == JobState.PENDING:
            row["state"] = SCHEDULED
    return Listing(rows, found.total)


def retries(
    inspector: "Inspector", *, queue: str | None = None, job: str | None = None, offset: int = 0, limit: int = 100
) -> Listing:
    """Jobs that have failed and wait for the instant of their next try, soonest first.

    `error` says why, `attempts` what went wrong each time, `run_at` when it is tried again. One whose instant has come
    waits in its queue, with the state "retrying" there too.
    """
    return scheduled(inspector, queue=queue, job=job, retries=True, offset=offset, limit=limit)


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


def retry_now(inspector: "Inspector", which: Which) -> list[Row]:
    """run_now for jobs that wait to be tried again, and no others."""
    return _alter(inspector, which, RUN, retries=True)


def give_up(inspector: "Inspector", which: Which) -> list[Row]:
    """Put jobs that wait to be tried again among the failed, with all their attempts, as if no retry had been left.

    Rows as of cancel_scheduled, with the state "failed". Hooks and failure back ends hear nothing of it: no
    worker is there to call them.
    """
    return _alter(inspector, which, GIVE_UP, retries=True)


def _alter(
    inspector: "Inspector", which: Which, action: str, at: float | None = None, *, retries: bool | None = None
) -> list[Row]:
    chosen, ids = _chosen(which)
    if not ids and not isinstance(which, Chosen):
        return []
    if retries is not None:
        chosen = replace(chosen, retries=retries)
    if at is not None and at <= time.time():
        action = RUN
    apart = inspector._client.settings.failed_per_queue
    altered = inspector._ask(lambda broker: broker.alter_scheduled(chosen, action, at=at, failed_per_queue=apart))
    rows = {one.id: _row(one, action, at) for one in altered}
    inspector._acted(_CALLED[action], ids=list(rows), what=shown(at) if action == MOVE else None)
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


def _row(altered: Altered, action: str, at: float | None) -> Row:
    return {
        "id": altered.id,
        "state": DONE[action],
        "job": altered.job,
        "queue": altered.queue,
        "run_at": shown(at if action == MOVE else altered.run_at),
    }
