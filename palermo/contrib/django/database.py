"""Hooks that manage a worker's database connections as Django manages those of requests.

Django closes broken connections, and those older than CONN_MAX_AGE, before and after each request, and clears the
queries that DEBUG records. The hooks do the same for each job. Coroutine jobs run their queries in a thread that
asgiref keeps for them; each has its own thread here, as each request has under ASGI, and its connections end with
the job. No connection is open when slots are forked, because two processes on one connection would break it.

Only a worker does this. A job that a test runs uses the test's own connections (palermo.testing). They may be in a
transaction that closing would break, and pytest-django may forbid their use.
"""

from collections.abc import Iterator
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import close_old_connections, connections, reset_queries

from palermo.jobs.definition import JobDefinition
from palermo.jobs.hooks import WorkerContext, hook


def before_first_fork_tend_django_connections(worker: WorkerContext) -> None:
    """Register the hooks below, only in a worker."""
    hook(around_process_django)
    hook(before_fork_close_django_connections)


def around_process_django(definition: JobDefinition, /, *args: Any, **kwargs: Any) -> Iterator[None]:
    """Close unusable connections before and after the job."""
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
            # Not awaited: in an async pool this is the event loop of all jobs.
            thread.submit(connections.close_all)
            thread.shutdown(wait=False)
        close_old_connections()


def before_fork_close_django_connections(worker: WorkerContext) -> None:
    """Close connections that modules opened during import, so that no slot inherits them."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if getattr(connection, "pool", None) is not None:
            connection.close_pool()
