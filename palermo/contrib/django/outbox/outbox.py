"""The outbox of a Django database: jobs that are stored in the transaction of the data, and enqueued soon after."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.db.models import Count, Min

from palermo.client.client import Client
from palermo.contrib.django.model_arguments import refuse_models
from palermo.contrib.outbox import Enqueueable, OutboxRow, make_row, sweep_rows, waiting_since


class Outbox:
    """The table of jobs in one database, which are stored with the data and enqueued soon after."""

    def __init__(self, *, using: str = "default") -> None:
        """`using` is the alias of the database, in settings.DATABASES."""
        self._using = using

    def enqueue(self, job: Enqueueable, /, *args: Any, **kwargs: Any) -> str:
        """Store the job in the transaction of the database; returns the id that it will have.

        It is written as JSON now, whatever its serializer is later. Raises ArgumentsInvalid, EncodeError.
        """
        refuse_models(job.definition, args, kwargs)
        row = make_row(job, args, kwargs)
        self._entries().create(
            job_id=row.id, job=row.job, arguments=row.arguments, options=row.options, created_at=row.created_at
        )
        return row.id

    def sweep(self, *, client: Client | None = None, limit: int = 500) -> int:
        """Enqueue the jobs of all rows, oldest first, and delete the rows; returns how many.

        Any number of processes may sweep at once, on databases that know SKIP LOCKED. A row that can never be enqueued
        gets its error, is logged and stays. Raises BrokerUnavailable, BrokerRefused, PublishRefused; the rows that are
        left then wait for the next sweep.
        """
        return sweep_rows(self._open_batch, client, limit)

    def waiting(self) -> tuple[int, float]:
        """How many rows wait, and for how many seconds the oldest of them: for alerts."""
        found = self._entries().filter(error=None).aggregate(count=Count("number"), oldest=Min("created_at"))
        return found["count"], waiting_since(found["oldest"])

    def _entries(self) -> Any:
        try:
            return apps.get_model("palermo_outbox", "OutboxEntry").objects.using(self._using)
        except LookupError:
            raise ImproperlyConfigured(
                'the outbox has no table. Put "palermo.contrib.django.outbox" into INSTALLED_APPS,'
                " and run `manage.py migrate`."
            ) from None

    @contextmanager
    def _open_batch(self, limit: int) -> Iterator["_Batch"]:
        features = connections[self._using].features
        # SQLite locks no rows, and may refuse to write in a transaction that began by reading.
        locked = (
            transaction.atomic(using=self._using, durable=True) if features.has_select_for_update else nullcontext()
        )
        stopped: BaseException | None = None
        with locked:
            batch = _Batch(self._entries(), limit, skip_locked=features.has_select_for_update_skip_locked)
            try:
                yield batch
            except BaseException as error:  # atomic() would roll back what has been moved
                stopped = error
        if stopped is not None:
            raise stopped


class _Batch:
    """Rows that a transaction has locked, where the database can."""

    def __init__(self, entries: Any, limit: int, *, skip_locked: bool) -> None:
        self._entries = entries
        found = entries.filter(error=None).order_by("number").select_for_update(skip_locked=skip_locked)[:limit]
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

    def delete(self, numbers: Sequence[int]) -> None:
        self._entries.filter(number__in=numbers).delete()

    def refuse(self, number: int, error: str) -> None:
        self._entries.filter(number=number).update(error=error)
