"""Hooks that manage a worker's database connections in the same way as Django manages those of requests.

Django closes broken connections, and those older than CONN_MAX_AGE, before and after each request, and clears the
queries recorded by DEBUG. The hooks do the same around each job. Coroutine jobs run their queries in a thread of
asgiref. As for ASGI requests, each job has its own such thread, whose connections are closed after the job. Connections
are closed before slots are forked, because two processes must not share one.

The hooks are active only in workers. A job run by a test uses the test's connections (palermo.testing), which may be in
a transaction, and pytest-django may forbid their use.
"""

from collections.abc import Iterator
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import close_old_connections, connections, reset_queries

from palermo.jobs.definition import JobDefinition
from palermo.jobs.hooks import WorkerContext, hook


def before_first_fork_tend_django_connections(worker: WorkerContext) -> None:
    """In a worker, register the hooks below."""
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
            # Not awaited, because in an async pool this would block the event loop of all jobs.
            thread.submit(connections.close_all)
            thread.shutdown(wait=False)
        close_old_connections()


def before_fork_close_django_connections(worker: WorkerContext) -> None:
    """Close connections opened during import, so that slots don't inherit them."""
    for connection in connections.all(initialized_only=True):
        connection.close()
        if getattr(connection, "pool", None) is not None:
            connection.close_pool()
