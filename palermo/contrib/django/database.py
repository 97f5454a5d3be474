"""Hooks that keep the database connections of workers as few and as fresh as those of requests.

A job is to its slot what a request is to Django's server: before it and after it, connections that broke, or that are
older than CONN_MAX_AGE, are closed, and the queries that DEBUG remembers are forgotten. Coroutine jobs do their queries
in a thread that asgiref keeps for them; each has a thread of its own here, as each request has under ASGI, and its
connections end with the job. Nothing is open when slots are forked: two processes on one connection destroy it.

Only a worker does this. A job that a test runs uses the test's own connections (palermo.testing). They may be in the
middle of a transaction that closing would break, and pytest-django may forbid their use.
"""

from collections.abc import Iterator
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import close_old_connections, connections, reset_queries

from palermo.jobs.definition import JobDefinition
from palermo.jobs.hooks import WorkerContext, hook


def before_first_fork_tend_django_connections(worker: WorkerContext) -> None:
    """Register the hooks below, in a worker and nowhere else."""
    hook(around_process_django)
    hook(before_fork_close_django_connections)


def around_process_django(definition: JobDefinition, /, *args: Any, **kwargs: Any) -> Iterator[None]:
    """Close the connections that must not be used again, before the job and after it."""
    reset_queries()
    close_old_connections()
    own = ThreadSensitiveContext()
    token = SyncToAsync.thread_sensitive_context.set(own)
    try:
        yield
    finally:
        SyncToAsync.thread_sensitive_context.reset(token)
        # Only a job that has called sync_to_async has such a thread.
        thread = SyncToAsync.context_to_thread_executor.pop(own, None)
        if thread is not None:
            # Not waited for: in an async pool this is the event loop of all jobs.
            thread.submit(connections.close_all)
            thread.shutdown(wait=False)
        close_old_connections()


def before_fork_close_django_connections(worker: WorkerContext) -> None:
    """Close what modules opened when they were imported: no slot may inherit it."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if getattr(connection, "pool", None) is not None:
            connection.close_pool()
