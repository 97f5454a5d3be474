"""Palermo in Django: add "palermo.contrib.django" to INSTALLED_APPS (docs/guides/django.md)."""

from typing import Any

from django.db import transaction

from palermo.client.handle import Job
from palermo.contrib.django.model_arguments import refuse_models
from palermo.contrib.outbox import Enqueueable, JobAfterCommit

__all__ = ["enqueue_on_commit"]


def enqueue_on_commit(job: Enqueueable, /, *args: Any, **kwargs: Any) -> Job:
    """Enqueue the job once the transaction of the default database is committed, or not at all if it is rolled back.

    Returns the handle of the job, which already has its id; before the commit its status is "unknown". Without a
    transaction the job is enqueued immediately. The arguments are checked now, and read at the commit: do not change
    them in between. For another database write `transaction.on_commit(..., using="other")`.

    Raises ArgumentsInvalid. If the broker is unavailable, the commit raises BrokerUnavailable: the data is stored,
    but the job isn't.
    """
    refuse_models(job.definition, args, kwargs)
    made = JobAfterCommit.of(job, args, kwargs)
    transaction.on_commit(made.enqueue)
    return made
