"""The client: enqueues jobs and publishes events, and asks for the status and the result of jobs.

`from palermo.client import Client` works, and imports palermo/client/client.py then: a module that only declares jobs
does not pay for it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palermo.client.client import (
        Client,
        connect,
        default_client,
        enqueue,
        job_by_id,
        publish,
        publish_async,
    )

__all__ = ["Client", "connect", "default_client", "enqueue", "job_by_id", "publish", "publish_async"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'palermo.client' has no attribute {name!r}")
    from palermo.client import client

    found = globals()[name] = getattr(client, name)
    return found
