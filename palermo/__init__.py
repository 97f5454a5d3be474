"""Palermo: jobs on RabbitMQ, as easy and robust as Resque.

    import palermo

    @palermo.job
    def resize(path, width=640): ...

    resize.enqueue("x.png")

and then, in a terminal, `palermo worker shop.tasks`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from palermo.errors import PalermoError
from palermo.handles import Job
from palermo.hooks import DontEnqueue, DontProcess, failure_backend, hook
from palermo.jobs import JobClass, job

if TYPE_CHECKING:
    from palermo.client import Client, connect, enqueue, job_by_id, publish, publish_async
    from palermo.config import Settings
    from palermo.core.decision import Discard, Retry, Snooze
    from palermo.core.retry import Exponential, Fixed, Linear
    from palermo.current import current_job, track
    from palermo.inspector import Inspector
    from palermo.subscribing import subscribe
    from palermo.worker.handle import start_worker

__all__ = [
    "Client",
    "Discard",
    "DontEnqueue",
    "DontProcess",
    "Exponential",
    "Fixed",
    "Inspector",
    "Job",
    "JobClass",
    "Linear",
    "PalermoError",
    "Retry",
    "Settings",
    "Snooze",
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
    "start_worker",
    "subscribe",
    "track",
]

#: What a module that only declares jobs does not need, and so does not pay for.
_LAZY = {
    "Client": "palermo.client",
    "connect": "palermo.client",
    "enqueue": "palermo.client",
    "job_by_id": "palermo.client",
    "publish": "palermo.client",
    "publish_async": "palermo.client",
    "Settings": "palermo.config",
    "Discard": "palermo.core.decision",
    "Retry": "palermo.core.decision",
    "Snooze": "palermo.core.decision",
    "Exponential": "palermo.core.retry",
    "Fixed": "palermo.core.retry",
    "Linear": "palermo.core.retry",
    "current_job": "palermo.current",
    "track": "palermo.current",
    "Inspector": "palermo.inspector",
    "start_worker": "palermo.worker.handle",
    "subscribe": "palermo.subscribing",
}


def inspector() -> "Inspector":
    """Everything that can be seen of the default client's broker, and done to it. See palermo.inspector."""
    from palermo.client import default_client
    from palermo.inspector import Inspector

    return Inspector(default_client())


_inspector = inspector


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from palermo.plugins import version

        return version()
    if name not in _LAZY:
        raise AttributeError(f"module 'palermo' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Inspector(ModuleType):
    """The module palermo.inspector, called as the function above."""

    def __call__(self) -> "Inspector":
        return _inspector()


class _Package(ModuleType):
    def __setattr__(self, name: str, value: object) -> None:
        # Importing palermo.inspector puts the module in the place of the function; so the module answers a call too.
        if name == "inspector" and isinstance(value, ModuleType):
            value.__class__ = _Inspector
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
