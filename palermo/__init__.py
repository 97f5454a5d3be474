"""Palermo: jobs on RabbitMQ, as easy and robust as Resque.

    import palermo

    @palermo.job
    def resize(path, width=640): ...

    resize.enqueue("x.png")

and then, in a terminal, `palermo worker shop.tasks`.
"""

import sys
from types import ModuleType

# `typing.TYPE_CHECKING` without importing typing, which takes long: until the `palermo` command has blocked signals,
# Ctrl-C shows a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from palermo.client.client import Client, connect, enqueue, job_by_id, publish, publish_async
    from palermo.client.decorator import JobClass, job
    from palermo.client.handle import Conflict, Job
    from palermo.client.status import JobStatus
    from palermo.client.subscribe import subscribe
    from palermo.client.workflow import Step, Workflow, workflow
    from palermo.contract.row_types import JobRow, QueueRow, WorkerRow
    from palermo.contract.rows import Listing
    from palermo.core.backoff import Exponential, Fixed, Linear
    from palermo.core.retry_policy import Discard, Retry, Snooze
    from palermo.errors import PalermoError
    from palermo.inspector.inspector import Inspector
    from palermo.jobs.batch import Batch
    from palermo.jobs.current import current_job, track
    from palermo.jobs.hooks import DontEnqueue, DontProcess, failure_backend, hook
    from palermo.jobs.resume import resume
    from palermo.settings.settings import Settings
    from palermo.views.filter import AuditFilter, JobFilter
    from palermo.worker.handle import start_worker

__all__ = [
    "AuditFilter",
    "Batch",
    "Client",
    "Conflict",
    "Discard",
    "DontEnqueue",
    "DontProcess",
    "Exponential",
    "Fixed",
    "Inspector",
    "Job",
    "JobClass",
    "JobFilter",
    "JobRow",
    "JobStatus",
    "Linear",
    "Listing",
    "PalermoError",
    "QueueRow",
    "Retry",
    "Settings",
    "Snooze",
    "Step",
    "WorkerRow",
    "Workflow",
    "connect",
    "current_job",
    "enqueue",
    "failure_backend",
    "hook",
    "inspector",
    "job",
    "job_by_id",
    "publish",
    "publish_async",
    "resume",
    "start_worker",
    "subscribe",
    "track",
    "workflow",
]

#: The module of each public name. Modules are imported on first use because a program that only declares jobs needs few
#: of them, and the command line and a worker's parent need none.
_HOMES = {
    "Batch": "palermo.jobs.batch",
    "Client": "palermo.client.client",
    "connect": "palermo.client.client",
    "enqueue": "palermo.client.client",
    "job_by_id": "palermo.client.client",
    "publish": "palermo.client.client",
    "publish_async": "palermo.client.client",
    "job": "palermo.client.decorator",
    "JobClass": "palermo.client.decorator",
    "Conflict": "palermo.client.handle",
    "Job": "palermo.client.handle",
    "PalermoError": "palermo.errors",
    "JobRow": "palermo.contract.row_types",
    "QueueRow": "palermo.contract.row_types",
    "WorkerRow": "palermo.contract.row_types",
    "DontEnqueue": "palermo.jobs.hooks",
    "DontProcess": "palermo.jobs.hooks",
    "failure_backend": "palermo.jobs.hooks",
    "hook": "palermo.jobs.hooks",
    "Settings": "palermo.settings.settings",
    "Discard": "palermo.core.retry_policy",
    "Retry": "palermo.core.retry_policy",
    "Snooze": "palermo.core.retry_policy",
    "Exponential": "palermo.core.backoff",
    "Fixed": "palermo.core.backoff",
    "Linear": "palermo.core.backoff",
    "current_job": "palermo.jobs.current",
    "track": "palermo.jobs.current",
    "resume": "palermo.jobs.resume",
    "AuditFilter": "palermo.views.filter",
    "JobFilter": "palermo.views.filter",
    "JobStatus": "palermo.client.status",
    "Listing": "palermo.contract.rows",
    "Inspector": "palermo.inspector.inspector",
    "start_worker": "palermo.worker.handle",
    "subscribe": "palermo.client.subscribe",
    "Step": "palermo.client.workflow",
    "Workflow": "palermo.client.workflow",
    "workflow": "palermo.client.workflow",
}


def inspector() -> "Inspector":
    """Return an inspector, which reads and changes the queues, jobs and workers of the default client's broker.

    See palermo.inspector.inspector.
    """
    from palermo.client.client import default_client
    from palermo.inspector.inspector import Inspector

    return Inspector(default_client())


_inspector = inspector


def __getattr__(name: str) -> "Any":
    if name == "__version__":
        from palermo.core.version import VERSION

        return VERSION
    if name not in _HOMES:
        raise AttributeError(f"module 'palermo' has no attribute {name!r}")
    from importlib import import_module

    from palermo.client import forking

    with forking.guard:
        found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    # Leaves out the modules imported here for internal use.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__")), "__version__"})


class _Inspector(ModuleType):
    """Makes the package palermo.inspector callable, like the function `inspector` above."""

    def __call__(self) -> "Inspector":
        return _inspector()


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        # Importing palermo.inspector replaces the function `inspector` with the package.
        if name == "inspector" and isinstance(value, ModuleType):
            value.__class__ = _Inspector
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
