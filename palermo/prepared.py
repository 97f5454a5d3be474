"""Calls on their way to the broker: made ready one by one, stored in batches."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from palermo import hooks
from palermo.core.message import Message
from palermo.errand import Errand
from palermo.io_thread import IoThread
from palermo.jobs import Job
from palermo.registry import JobDefinition

#: enqueue_many publishes in batches of at most this many jobs and bytes, so that memory is bounded and each
#: batch has a fair chance within publish_timeout. While one is being confirmed the next is being made.
BATCH, BATCH_BYTES = 1_000, 1_048_576


class Prepared(NamedTuple):
    """A call that is ready to go; no message if a hook kept it back."""

    job: Job
    message: Message | None
    definition: JobDefinition | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def enqueued(self) -> None:
        """It is stored: tell the hooks."""
        if self.definition is not None:
            hooks.notify("after_enqueue", self.definition, self.args, self.kwargs)


def batches(prepared: Iterable[Prepared], made: list[Job]) -> Iterator[list[Prepared]]:
    """The calls in batches, without those that a hook kept back; all of them leave their handle in `made`."""
    batch: list[Prepared] = []
    size = 0
    for each in prepared:
        made.append(each.job)
        if each.message is None:
            continue
        batch.append(each)
        size += len(each.message.body)
        if len(batch) >= BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def landed(io: IoThread, waiting: deque[tuple[Errand, list[Prepared]]]) -> int:
    """Wait for the oldest batch to be stored and tell the hooks; returns how many jobs it held."""
    errand, batch = waiting[0]
    io.wait(errand)
    waiting.popleft()
    for prepared in batch:
        prepared.enqueued()
    return len(batch)
