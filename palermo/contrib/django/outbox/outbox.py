"""An outbox in a Django database: jobs are stored in the same transaction as the data, and enqueued after the
commit.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.db.models import Count, Min

from palermo.client.client import Client
from palermo.client.handle import Job
from palermo.contrib.django.model_arguments import refuse_models
from palermo.contrib.outbox import (
    MIN_AGE,
    CommitSweep,
    Enqueueable,
    OutboxJob,
    OutboxRow,
    RowSelection,
    make_row,
    sweep_rows,
    waiting_since,
)


class Outbox:
    """A table of jobs in one database, which are stored with the data and enqueued after the commit."""

    def __init__(self, *, using: str = "default") -> None:
        """`using` is the alias of the database in settings.DATABASES."""
        self._using = using
        self._commits = CommitSweep()
        self._stored = _Stored()

    def enqueue(self, job: Enqueueable, /, *args: Any, **kwargs: Any) -> Job:
        """Store the job in the database's transaction. It is enqueued right after the commit, or by a sweep.

        Returns the job's handle, whose status is "outbox" until then. The row is JSON, even if the job has another
        serializer. Raises ArgumentsInvalid, EncodeError.
        """
        refuse_models(job.definition, args, kwargs)
        row = make_row(job, args, kwargs)
        self._entries().create(
            job_id=row.id, job=row.job, arguments=row.arguments, options=row.options, created_at=row.created_at
        )
        if not any(function == self._committed for _, function, *_ in connections[self._using].run_on_commit):
            self._stored.ids = []  # from a rolled-back transaction
        self._stored.ids.append(row.id)
        # Registered for each row, because rolling back a savepoint drops the callbacks of its rows.
        transaction.on_commit(self._committed, using=self._using)
        return OutboxJob.of(row, job, _FindRow(self))

    def sweep(self, *, client: Client | None = None, limit: int = 500, min_age: float = MIN_AGE) -> int:
        """Enqueue the jobs of all rows older than `min_age` seconds, and delete the rows. Returns their number.

        Newer rows are left to the programs that stored them, which enqueue them right after the commit. Rows are moved
        oldest first, at most `limit` per transaction. Several processes may sweep at the same time if the database
        supports SKIP LOCKED. If a row can never be enqueued, its error is stored and logged, and the row is kept.
        Raises BrokerUnavailable, BrokerRefused and PublishRefused; remaining rows wait for the next sweep.
        """
        return sweep_rows(self._open_batch, client, limit=limit, min_age=min_age)

    def waiting(self) -> tuple[int, float]:
        """Return the number of waiting rows, and the age of the oldest in seconds, for alerts."""
        found = self._entries().filter(error=None).aggregate(count=Count("number"), oldest=Min("created_at"))
        return found["count"], waiting_since(found["oldest"])

    def _committed(self) -> None:
        """Enqueue the jobs of this thread's transaction. Called for each row; the first call moves all."""
        ids, self._stored.ids = self._stored.ids, []
        self._commits.move(self._open_batch, ids)

    def _entries(self) -> Any:
        try:
            return apps.get_model("palermo_outbox", "OutboxEntry").objects.using(self._using)
        except LookupError:
            raise ImproperlyConfigured(
                'the outbox has no table. Add "palermo.contrib.django.outbox" to INSTALLED_APPS, then run'
                " `manage.py migrate`."
            ) from None

    @contextmanager
    def _open_batch(self, selection: RowSelection) -> Iterator["_Batch"]:
        features = connections[self._using].features
        # SQLite doesn't lock rows, and may refuse to write in a transaction that started with a read.
        locked = (
            transaction.atomic(using=self._using, durable=True) if features.has_select_for_update else nullcontext()
        )
        stopped: BaseException | None = None
        with locked:
            batch = _Batch(self._entries(), selection, skip_locked=features.has_select_for_update_skip_locked)
            try:
                yield batch
            except BaseException as error:  # atomic() would roll back the deletion of moved rows
                stopped = error
        if stopped is not None:
            raise stopped


class _Stored(threading.local):
    """The ids of the jobs in this thread's transaction."""

    def __init__(self) -> None:
        self.ids: list[str] = []


class _FindRow:
    """Finds rows for the handles of an outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def __call__(self, id: str) -> str | None:
        found = list(self._outbox._entries().filter(job_id=id).values_list("error", flat=True)[:1])
        return (found[0] or "") if found else None

    async def in_loop(self, id: str) -> str | None:
        return await sync_to_async(self)(id)


class _Batch:
    """Rows locked by a transaction, if the database supports that."""

    def __init__(self, entries: Any, selection: RowSelection, *, skip_locked: bool) -> None:
        self._entries = entries
        chosen = entries.filter(error=None)
        if selection.until is not None:
            chosen = chosen.filter(created_at__lte=selection.until)
        if selection.ids is not None:
            chosen = chosen.filter(job_id__in=selection.ids)
        if selection.without:
            chosen = chosen.exclude(job__in=selection.without)
        found = chosen.order_by("number").select_for_update(skip_locked=skip_locked)[: selection.limit]
        self.rows = [
            OutboxRow(
                number=entry.number,
                id=entry.job_id,
                job=entry.job,
                arguments=entry.arguments,
                options=entry.options,
                created_at=entry.created_at,
            )
            for entry in found
        ]

    def run(self, call: Callable[[], object]) -> None:
        call()

    def delete(self, numbers: Sequence[int]) -> None:
        # One by one, because MySQL may scan the table to delete several, and then waits for another sweep's rows.
        for number in numbers:
            self._entries.filter(number=number).delete()

    def refuse(self, number: int, error: str) -> None:
        self._entries.filter(number=number).update(error=error)
