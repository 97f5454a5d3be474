"""Moves messages: publishes each to its new place, and acknowledges it in the old one after the confirm.

Law: nothing here uses AMQP transactions. If a queue refuses a publish (overflow reject-publish), RabbitMQ ends the
transaction with 406 "partial tx completion" but keeps its acknowledgements, so the message would be in no queue.
RabbitMQ guarantees atomicity for one queue only.

Promise:

* A refused message remains in its old place. The move is retried after a growing pause, and the refusal is logged
  (`Refusals`).
* A job that can never be published, because its headers don't fit a frame of this connection, goes to `failed`
  (`unpublishable`), so that it doesn't block other jobs forever.
* kill -9 of the leader, or a lost session: the message is in its old place, in its new one, or in both with the same
  id. So a delayed job, or a tenant's job, may run twice. Before a ledger (ledger.py) publishes a job again, it searches
  for the job, because the last leader may have published it (`find_published`). Such a job runs twice only if the
  leader dies between the confirm and the acknowledgement, and the worker with the job dies at the same time. A silent
  worker counts as dead, and a message that another session holds at that moment, in order to read its queue, is not
  found. The second copy has a header (PUBLISHED_AGAIN), with which a worker treats it as redelivered, so it drops the
  copy of a step that has ended.
* kill -9 of the broker: confirmed messages survive. Acknowledgements not yet on disk are lost.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON, Got
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.browsing.sweep import Reader, ids_in
from palermo.brokers.rabbitmq.cluster.worker_control import ask_workers, jobs_of_workers
from palermo.brokers.rabbitmq.seconds import SAY_EVERY
from palermo.core.failure import from_exception
from palermo.core.lifecycle import fail
from palermo.core.message import Message
from palermo.core.topology import CLASSIC
from palermo.errors import HeadersTooLarge, NotFound, PalermoError, PublishRefused

log = logging.getLogger("palermo.rabbitmq")

#: Maximum number of a queue's messages that are searched for a job. A longer queue counts as not having it.
_READ = 5_000

#: Seconds after which a message seen in a queue is on disk: RabbitMQ writes every 0.2 s (SYNC_INTERVAL in
#: rabbit_amqqueue_process.erl).
_WRITTEN = 1.0


async def outcomes(connection: Connection, sending: Iterable[Awaitable[None]]) -> list[PalermoError | None]:
    """The error of each of these publishes, or None for a confirmed one.

    Raises the error of a lost session, and any error that is not a PalermoError.
    """
    found: list[PalermoError | None] = []
    for result in await asyncio.gather(*sending, return_exceptions=True):
        if result is None or isinstance(result, PalermoError):
            found.append(result)
        else:
            raise result
    if connection.error is not None:
        raise connection.error
    return found


def unpublishable(message: Message, error: PalermoError, *, now: float) -> Message:
    """The copy, for the failed queue, of a job that can never be published, with the error."""
    if isinstance(error, HeadersTooLarge):
        error = HeadersTooLarge(
            f"it cannot be published again: {error} Set a larger frame_max in the broker URL of the workers."
        )
    return fail(message, from_exception(error, failed_at=int(now)), worker="")


async def write_acks(publisher: Publisher, queue: str) -> None:
    """Make RabbitMQ write this queue's acknowledgements to disk, by publishing a persistent mark to it.

    Otherwise a kill -9 of the broker may bring back messages acknowledged since the last publish to the queue.
    """
    with suppress(PublishRefused, NotFound):
        await publisher.send("", queue, PERSISTENT_JSON, b"")


def is_mark(got: Got) -> bool:
    """Whether this message is such a mark rather than a delayed job.

    RabbitMQ adds `x-delivery-count` when a quorum queue redelivers a message.
    """
    return not got.body and all(name.startswith("x-") for name in got.properties.headers or ())


class Refusals:
    """Decides when to retry a place that refuses messages, and when to log the refusal."""

    def __init__(self, what: str, *, first: float = 1.0, last: float = 30.0) -> None:
        """`what` describes the messages in the log. The pause is doubled from `first` to `last` seconds."""
        self._what = what
        self._first, self._last = first, last
        self._pause = 0.0
        self._said: float | None = None

    def refused(self, error: PalermoError, *, some: bool = False) -> float:
        """Record a refusal.

        Returns the seconds until the next attempt. `some` says that only some messages were refused.
        """
        self._pause = self._first if some or not self._pause else min(2 * self._pause, self._last)
        now = time.monotonic()
        if self._said is None or now - self._said >= SAY_EVERY:
            self._said = now
            log.warning("broker refuses %s, retrying error=%r", self._what, str(error))
        return self._pause

    def taken(self) -> None:
        """Record that a message was stored."""
        self._pause = 0.0


async def find_published(
    connection: Connection,
    exchange: str,
    jobs: Mapping[str, str],
    kind: Callable[[str], Awaitable[str]],
    *,
    ended: bool = True,
) -> frozenset[str]:
    """The ids of the jobs among these that are in their queues or with a living worker.

    With `ended`, includes jobs whose end a living worker remembers. `jobs` has each job's queue by its id; `kind`
    returns a queue's type. Only classic queues are searched, because others count a read as a failed delivery.
    """
    found: set[str] = set()
    for queue in sorted(set(jobs.values())):
        try:
            if await kind(queue) == CLASSIC:
                reader = Reader(connection, exchange, queue, only_look=True)
                found |= jobs.keys() & await ids_in(reader, most=_READ)
        except PalermoError as error:
            if connection.error is not None:
                raise
            # A queue whose node is down must not block the jobs of other queues.
            log.warning("cannot check whether jobs were published queue=%s error=%r", queue, str(error))
    # The workers are asked after the queues are read: a job moves from its queue to a worker.
    left = [id for id in jobs if id not in found]
    if left and not ended:
        workers = await ask_workers(connection, exchange)
        found |= {id for id in left if any(worker.has(id) for worker in workers)}
    elif left:
        found |= await jobs_of_workers(connection, exchange, left)
    if found:
        # A message that was seen is perhaps not on disk yet, so a kill -9 of the broker could still lose it.
        await asyncio.sleep(_WRITTEN)
    return frozenset(found)
