"""All failed jobs of a broker: in a single queue or, with failed_per_queue, in a failed queue per queue."""

import logging
from collections.abc import Callable, Collection
from contextlib import suppress

from msgspec.structs import replace

from palermo.contract import clock
from palermo.contract.broker import Broker, Page
from palermo.contract.sweep import Keep, Remove, Stop, SweepDecision, SweepProgress
from palermo.core.message import Message
from palermo.core.topology import is_failed
from palermo.errors import NotBrowsable, NotFound, PalermoError
from palermo.settings.settings import Settings

log = logging.getLogger("palermo.worker")


async def failed_queues(broker: Broker) -> dict[str, int]:
    """Return the number of jobs in each failed queue, by queue name."""
    return {queue.name: queue.pending for queue in await broker.queues() if is_failed(queue.name)}


async def browse_failed(broker: Broker, *, offset: int, limit: int, newest: bool) -> Page:
    """Return a page of all failed jobs, queue by queue, each in its own order.

    Jobs held by another reader are missing from the page but are counted.
    """
    queues = await failed_queues(broker)
    messages: list[Message] = []
    before = unseen = 0
    for queue in reversed(queues) if newest else queues:
        wanted = limit - len(messages)
        if wanted <= 0:
            before += queues[queue]
            continue
        try:
            page = await broker.browse(queue, offset=max(0, offset - before), limit=wanted, newest=newest)
        except NotFound:
            continue  # deleted after it was listed
        messages += page.messages
        unseen += page.unseen
        before += page.total
    return Page(messages=tuple(messages), total=before, unseen=unseen)


async def sweep_failed(
    broker: Broker,
    judge: Callable[[Message], SweepDecision],
    progress: Callable[[SweepProgress], None] | None = None,
    *,
    only_look: bool = False,
    ids: Collection[str] = (),
) -> SweepProgress:
    """Let the judge decide about every failed job. `progress` receives the combined progress over all queues.

    With `ids`, the judge must keep all other jobs, and may be called only for these. With `only_look`, it must keep
    every job, and queues that can't be read without changing them are skipped.
    """
    queues = await failed_queues(broker)
    if only_look:
        queues = {name: held for name, held in queues.items() if await _is_browsable(broker, name)}
    done = SweepProgress(total=sum(queues.values()))
    for queue in queues:
        before = done

        def tell(swept: SweepProgress, before: SweepProgress = before) -> None:
            if progress is not None:
                progress(_added(before, swept))

        with suppress(NotFound):  # deleted after it was listed
            done = _added(before, await broker.sweep(queue, judge, progress=tell, only_look=only_look, ids=ids))
    return done


async def _is_browsable(broker: Broker, queue: str) -> bool:
    """Whether the queue exists and can be read without changing it."""
    try:
        await broker.browse(queue, limit=0)
    except (NotBrowsable, NotFound):
        return False
    return True


async def trim_failed(broker: Broker, *, max_age: float | None, max_count: int | None, now: float) -> int:
    """Remove failed jobs older than `max_age` seconds, and the oldest ones above `max_count` per queue.

    `now` is in Unix seconds. Returns the number of removed jobs.
    """
    removed = 0
    for queue, held in (await failed_queues(broker)).items():
        surplus = 0 if max_count is None else held - max_count
        if surplus <= 0 and max_age is None:
            continue
        judge = retention_judge(surplus, None if max_age is None else now - max_age)
        with suppress(NotFound):  # deleted after it was listed
            removed += (await broker.sweep(queue, judge)).removed
    return removed


def retention_judge(surplus: int, before: float | None) -> Callable[[Message], SweepDecision]:
    """Return a judge that removes the first `surplus` failed jobs, and those that failed before `before`.

    The judge must be called for the oldest jobs first. A job without a failure time, for example from another program,
    has no age limit.
    """
    left = surplus

    def decide(message: Message) -> SweepDecision:
        nonlocal left
        failed_at = message.failure.failed_at if message.failure else 0
        if left > 0 or (before is not None and 0 < failed_at < before):
            left -= 1
            return Remove()
        # The queue is ordered by failure time, so no later job is older.
        return Stop() if failed_at or before is None else Keep()

    return decide


def _added(before: SweepProgress, swept: SweepProgress) -> SweepProgress:
    return replace(
        before,
        seen=before.seen + swept.seen,
        removed=before.removed + swept.removed,
        moved=before.moved + swept.moved,
        unseen=before.unseen + swept.unseen,
    )


#: Minimum number of seconds between two runs of FailedRetention.
RETENTION_EVERY = 60.0


class FailedRetention:
    """Removes failed jobs above the configured maximum age and count.

    A worker calls it when it starts and after failures, at most once a minute.
    """

    def __init__(self, settings: Settings) -> None:
        self._max_age = settings.failed_max_age
        self._max_count = settings.failed_max_count
        self._ran_at = float("-inf")

    @property
    def wanted(self) -> bool:
        """Whether a limit is configured."""
        return self._max_age is not None or self._max_count is not None

    @property
    def due_in(self) -> float:
        """Seconds until the next run is allowed."""
        return max(0.0, self._ran_at + RETENTION_EVERY - clock.now())

    async def run(self, broker: Broker) -> None:
        """Remove failed jobs beyond the limits."""
        if not self.wanted:
            return
        self._ran_at = clock.now()
        try:
            removed = await trim_failed(broker, max_age=self._max_age, max_count=self._max_count, now=self._ran_at)
        except PalermoError as error:
            log.warning("failed jobs not trimmed error=%r", str(error))
            return
        if removed:
            log.info("failed jobs trimmed removed=%d", removed)
