"""Listings for single requests, which read only the part of the journal for one page, and the timeline of a job."""

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from msgspec.structs import replace

from palermo.client.actor import OTHER_ARGUMENTS
from palermo.client.client import Client
from palermo.client.recorded_jobs import EDITED, RecordedJob, SearchedArguments, has_arguments, read_recorded
from palermo.contract.journal import FROM_START, ReadFrom, Wants
from palermo.contract.row_types import ActionRow, FinishedRow
from palermo.contract.rows import Listing, Row
from palermo.core.journal_records import Record, names_any
from palermo.history.audit import AuditLog
from palermo.history.index import Index
from palermo.history.journal_reader import OnProgress, read_to_end
from palermo.views.filter import AuditFilter, JobFilter

#: Number of batches read for a page of the newest jobs. Until the page is full, this many times more are read, up to
#: the whole journal.
_FIRST_BATCHES, _TIMES_MORE = 32, 8

#: Maximum number of records in a job's timeline on the pages and in the API. The newest are kept.
_MOST_STEPS = 1_000


def history(
    client: Client, filter: JobFilter, *, offset: int, limit: int, progress: OnProgress | None = None
) -> Listing[FinishedRow]:
    """List finished jobs, newest first. The total is None unless the whole journal had to be read.

    If the filter has no `since`, the journal's end is read, and a longer part of it until the page is full.
    """
    arguments = SearchedArguments(client.serializers, client.settings.web_redact).text if filter.text else None
    size = _FIRST_BATCHES
    while True:
        start = ReadFrom(last=size) if filter.since is None else ReadFrom(since=filter.first)
        with closing(Index(arguments)) as index:
            first, end = read_to_end(client, [index], start, progress=progress)
            # By far, because batches may have been stored between finding the end and the start.
            whole = filter.since is not None or first is None or first > end - size // 2
            found = index.page(filter, offset=offset, limit=limit)
            if whole or len(found) == limit:
                return Listing([entry.row() for entry in found], index.count(filter) if whole else None)
        size *= _TIMES_MORE


def life_of(client: Client, id: str, *, progress: OnProgress | None = None) -> list[Row]:
    """Return all journal records of a job, oldest first."""
    with _views(client, names_any([id]), progress) as (index, actions):
        return life(index, actions, id, limit=sys.maxsize)


def recorded_of(client: Client, id: str, *, progress: OnProgress | None = None) -> RecordedJob | None:
    """Like `recorded`, for a single request."""
    with _views(client, None, progress) as (index, actions):
        return recorded(index, actions, id)


@contextmanager
def _views(client: Client, wants: Wants | None, progress: OnProgress | None) -> Iterator[tuple[Index, AuditLog]]:
    """Read the journal's current content, or only the batches that `wants` accepts, into views."""
    with closing(Index()) as index, closing(AuditLog()) as actions:
        read_to_end(client, [index, actions], wants=wants, progress=progress)
        yield index, actions


def kept_result(index: Index, id: str) -> Record | None:
    """Return the record of a job's end with its result; None if it has none, or one that is too long for the index."""
    for entry in reversed(index.of(id, limit=_MOST_STEPS)):
        if isinstance(result := entry.more.get("result"), dict):
            return {"kind": entry.kind, "id": entry.id, "job": entry.job, "result": result}
    return None


def recorded(index: Index, audit: AuditLog, id: str) -> RecordedJob | None:
    """Return a job with the arguments and options from the newest record that has them; None if no record does."""
    entry = next((entry for entry in reversed(index.of(id, limit=_MOST_STEPS)) if has_arguments(entry.more)), None)
    if entry is None:
        return None
    found = read_recorded(entry.id, entry.job, entry.queue, entry.more)
    # If a requeue changed the arguments, a later record of the new run contains them.
    edited = any(at > entry.at and (row["what"] or "").startswith(OTHER_ARGUMENTS) for at, row in audit.of(id))
    return replace(found, inexact=EDITED) if edited else found


def audit(
    client: Client, filter: AuditFilter, *, offset: int, limit: int, progress: OnProgress | None = None
) -> Listing[ActionRow]:
    """List operators' actions, newest first."""
    start = FROM_START if filter.since is None else ReadFrom(since=filter.since)
    with closing(AuditLog()) as found:
        read_to_end(client, [found], start, progress=progress)
        return Listing(found.page(filter, offset=offset, limit=limit), found.count(filter))


def life(index: Index, audit: AuditLog, id: str, *, limit: int = _MOST_STEPS) -> list[Row]:
    """Return the timeline of a job, oldest first: its newest `limit` records and operators' actions, each with `kind`
    and `at`.

    They are ordered by time, because records of clients and workers may be stored in another order.
    """
    # The end of a run whose session was lost has the same instant as its release, and may be stored earlier.
    steps = [(entry.at, entry.state is not None, entry.step()) for entry in index.of(id, limit=limit)]
    steps += [(at, True, {"kind": "action", **row}) for at, row in audit.of(id)]
    return [row for *_, row in sorted(steps, key=lambda step: step[:2])]
