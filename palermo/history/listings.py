"""Listings for a single request: the journal is read for one page, and nothing of it is kept. And the life of a job."""

import time
from dataclasses import replace

from palermo.client.actor import OTHER_ARGUMENTS
from palermo.client.client import Client
from palermo.client.recorded_jobs import EDITED, RecordedJob, read_recorded, tells_arguments
from palermo.contract.journal import FROM_START, ReadFrom
from palermo.contract.rows import Listing, Row
from palermo.core.journal_records import Record
from palermo.history.audit import AuditLog
from palermo.history.filters import AuditFilter, HistoryFilter
from palermo.history.index import Index
from palermo.history.journal_reader import OnProgress, read_to_end

#: Seconds of the journal that are read for a page of the newest jobs: the next one, and at last the whole journal,
#: where the one before does not fill the page.
_WINDOWS = (3_600.0, 86_400.0, None)

#: The most records of one job in its life, the newest.
_MOST_STEPS = 1_000


def history(
    client: Client, filter: HistoryFilter, *, offset: int, limit: int, progress: OnProgress | None = None
) -> Listing:
    """Finished jobs, newest first; their total is None where not all of the journal had to be read."""
    given = filter.since
    for window in _WINDOWS if given is None else (None,):
        since = given if window is None else time.time() - window
        index = Index()
        try:
            read_to_end(client, [index], FROM_START if since is None else ReadFrom(since=since), progress=progress)
            found = index.page(filter, offset=offset, limit=limit)
            if len(found) >= limit or window is None:
                total = index.count(filter) if window is None else None
                return Listing([entry.row() for entry in found], total)
        finally:
            index.close()
    raise AssertionError("the last window is the whole journal")


def life_of(client: Client, id: str, *, progress: OnProgress | None = None) -> list[Row]:
    """All that the journal holds about one job, oldest first."""
    index, actions = Index(), AuditLog()
    try:
        read_to_end(client, [index, actions], progress=progress)
        return life(index, actions, id)
    finally:
        index.close()
        actions.close()


def recorded_of(client: Client, id: str, *, progress: OnProgress | None = None) -> RecordedJob | None:
    """`recorded`, for a single request."""
    index, actions = Index(), AuditLog()
    try:
        read_to_end(client, [index, actions], progress=progress)
        return recorded(index, actions, id)
    finally:
        index.close()
        actions.close()


def kept_result(index: Index, id: str) -> Record | None:
    """The record of a job's end with the result that it kept; None if it has none, or one that is too long to keep."""
    for entry in reversed(index.of(id, limit=_MOST_STEPS)):
        if isinstance(result := entry.more.get("result"), dict):
            return {"kind": entry.kind, "id": entry.id, "job": entry.job, "result": result}
    return None


def recorded(index: Index, audit: AuditLog, id: str) -> RecordedJob | None:
    """The job with its arguments and options, as the newest record holds them; None if no record does."""
    entry = next((entry for entry in reversed(index.of(id, limit=_MOST_STEPS)) if tells_arguments(entry.more)), None)
    if entry is None:
        return None
    found = read_recorded(entry.id, entry.job, entry.queue, entry.more)
    # A requeue with other arguments is followed by a record of the new run's end, which has those.
    edited = any(at > entry.at and row["what"] == OTHER_ARGUMENTS for at, row in audit.of(id))
    return replace(found, inexact=EDITED) if edited else found


def audit(
    client: Client, filter: AuditFilter, *, offset: int, limit: int, progress: OnProgress | None = None
) -> Listing:
    """The actions of people, newest first."""
    found = AuditLog()
    try:
        start = FROM_START if filter.since is None else ReadFrom(since=filter.since)
        read_to_end(client, [found], start, progress=progress)
        return Listing(found.page(filter, offset=offset, limit=limit), found.count(filter))
    finally:
        found.close()


def life(index: Index, audit: AuditLog, id: str) -> list[Row]:
    """The life of a job, oldest first: its records and what people did to it, each with `kind` and `at`.

    They are in the order of their instants, since a client may store its record later than a worker, but act before it.
    """
    steps = [(entry.at, entry.step()) for entry in index.of(id, limit=_MOST_STEPS)]
    steps += [(at, {"kind": "action", **row}) for at, row in audit.of(id)]
    return [row for _, row in sorted(steps, key=lambda step: step[0])]
