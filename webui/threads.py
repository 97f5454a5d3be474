"""The threads in which pages and the API wait for the broker.

A handler that is a plain function may wait for the broker for up to `publish_timeout`. These threads are reserved for
such handlers. Files, /healthz and the rest of a mounting application use the event loop's threads, and never wait for
the broker.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.routing import APIRoute

from palermo.webui import tuning
from palermo.webui.site import Refused

T = TypeVar("T")


class Threads:
    """A number of threads for one kind of work."""

    def __init__(self, name: str, most: int) -> None:
        self._most = most
        self._pool = ThreadPoolExecutor(most, thread_name_prefix=name)

    async def run(self, work: Callable[[], T]) -> T:
        """Do the work in a thread. Raises Refused (503) if none becomes free within LONG_WAIT seconds."""
        asked = self._pool.submit(copy_context().run, work)
        result = asyncio.wrap_future(asked)
        done, _ = await asyncio.wait({result}, timeout=tuning.LONG_WAIT)
        if not done and asked.cancel():
            raise Refused(
                503,
                f"{self._most} requests are already waiting, perhaps because the broker does not answer."
                " Try again later.",
            )
        return await result


_HANDLERS = Threads("palermo-web", tuning.THREADS)


class Route(APIRoute):
    """A route whose handler runs in one of these threads, unless it is a coroutine function."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint if iscoroutinefunction(endpoint) else _in_thread(endpoint), **options)


class Router(APIRouter):
    """A router for pages or the API. Its handlers run in threads."""

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=Route, **options)


def _in_thread(handler: Callable[..., T]) -> Callable[..., Any]:
    @wraps(handler)
    async def run(**values: Any) -> T:
        return await _HANDLERS.run(partial(handler, **values))

    return run
