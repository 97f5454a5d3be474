"""The garbage collector of a parent, which must not hold the loop for longer than a few milliseconds.

A leader holds many objects that stay, such as its due and recurring jobs. Each full collection visits all of them: with
300,000 it held the loop for 50 to 120 ms, and jobs were enqueued that much later. So what has survived a collection
that took long is frozen: the next ones do not visit it. Keys and indexed jobs are never visited (`gc=False`).
Python 3.14.0 to 3.14.4 collect a part at a time instead, which needs no freezing.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

#: Seconds of processor time beyond which a full collection freezes what it leaves.
_LONG = 0.003

#: Collections of the middle generation before a full one: few, so that little is new in a full one.
_BEFORE_FULL = 1

#: The thresholds while nobody watches.
_USUAL = gc.get_threshold()


class Collector:
    """Watches the full collections of this process."""

    def __init__(self) -> None:
        self._began = 0.0
        self._frozen = False

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Freeze what stays while the context lasts."""
        gc.set_threshold(*_USUAL[:2], min(_BEFORE_FULL, _USUAL[2]))
        gc.callbacks.append(self._on_collection)
        try:
            yield
        finally:
            gc.callbacks.remove(self._on_collection)
            gc.set_threshold(*_USUAL)

    def collect_all(self) -> None:
        """Collect all garbage, that of frozen objects too."""
        if self._frozen:
            gc.unfreeze()
            self._frozen = False
        gc.collect()

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = time.thread_time()
        elif time.thread_time() - self._began > _LONG:
            # There is no garbage among them, unless they become some later: `collect_all` finds that.
            gc.freeze()
            self._frozen = True
