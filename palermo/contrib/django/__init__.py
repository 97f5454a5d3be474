"""Palermo in Django: add "palermo.contrib.django" to INSTALLED_APPS (docs/guides/django.md)."""

from typing import Any

from django.db import transaction

from palermo.client.handle import Job
from palermo.contrib.django.model_arguments import refuse_models
from palermo.contrib.outbox import Enqueueable, JobAfterCommit

__all__ = ["enqueue_on_commit"]


def enqueue_on_commit(job: Enqueueable, /, *args: Any, **kwargs: Any) -> Job:
    """Enqueue the job once the default database's transaction is committed. If it is rolled back, nothing is enqueued.

    Returns the job's handle, which already has an id; its status is "unknown" before the commit. Without a transaction
    the job is enqueued immediately. The arguments are checked now but read at the commit, so don't change them in
    between. For other databases, use `transaction.on_commit(..., using="other")`.

    Raises ArgumentsInvalid. If the broker is unavailable, the commit raises BrokerUnavailable: the data is stored, but
    the job isn't.
    """
    refuse_models(job.definition, args, kwargs)
    made = JobAfterCommit.of(job, args, kwargs)
    transaction.on_commit(made.enqueue)
    return made
