"""`Broker.find` of RabbitMQ: searches for jobs in a broker without an index of ids.

Promise: the search consumes, changes and remembers nothing. It visits places in the order in which jobs move. `unseen`
names each place that was not searched completely: the middle of a long queue, the longest of many queues, a queue that
must not be read, a slow leader or worker, and places without permission. An error of the session is raised.

After a kill -9 of a worker its job may be nowhere for a moment, until RabbitMQ has requeued it.

Cost: one request to the leader, one count for each queue, at most 2 * DEPTH jobs of one queue (of QUEUES queues if none
is named), one request to all workers, and at most FAILED failed jobs. Bodies are cut after MAX_SHOWN bytes.
"""

import asyncio
from collections.abc import AsyncIterator, Collection

from palermo.brokers.rabbitmq.seconds import ANSWERED_WITHIN
from palermo.contract.broker import Broker, Page
from palermo.contract.finding import (
    DEPTH,
    MOST_FOUND,
    FoundJobs,
    JobLocation,
    failed_at,
    is_wanted,
    running_at,
    waiting_at,
)
from palermo.contract.rows import MAX_SHOWN
from palermo.contract.scheduled import ScheduledFilter
from palermo.contract.sweep import Keep, Stop, SweepDecision
from palermo.contract.trouble import unless_blocked
from palermo.contract.worker_info import UNASKED
from palermo.core.message import Message
from palermo.core.text import count
from palermo.core.topology import is_failed
from palermo.errors import BrokerBlocked, BrokerError, BrokerRefused, BrokerUnavailable, NotBrowsable, NotFound

#: Maximum number of queues that are read, if none is named; of scheduled jobs that are read to find id prefixes; and of
#: failed jobs.
QUEUES, SCHEDULED, FAILED = 20, 10_000, 10_000

#: Number of jobs above which the time for reading the end of a queue is limited. RabbitMQ must read all jobs before it,
#: which workers don't get in the meantime.
_LONG = 10_000

#: Maximum seconds for that.
_READ_WITHIN = 1.0


async def search(broker: Broker, ids: Collection[str], *, queue: str, failed: bool, beginnings: bool) -> FoundJobs:
    """See Broker.find."""
    job_search = _JobSearch(broker, ids, beginnings=beginnings)
    steps = [job_search.scheduled, lambda: job_search.waiting(queue), job_search.running]
    for step in [*steps, job_search.failed] if failed else steps:
        if not job_search.complete:
            await step()
    return FoundJobs(jobs=tuple(job_search.found[:MOST_FOUND]), unseen=tuple(job_search.unseen))


class _JobSearch:
    """One search. Each method covers one kind of place."""

    def __init__(self, broker: Broker, ids: Collection[str], *, beginnings: bool) -> None:
        self.found: list[JobLocation] = []
        self.unseen: list[str] = []
        self._broker = broker
        #: The ids that are not found yet; empty if `ids` are prefixes, which may match any number of jobs.
        self._left = set() if beginnings else set(ids)
        self._exact = None if beginnings else frozenset(ids)
        self._wanted = is_wanted(ids, beginnings=beginnings)

    @property
    def complete(self) -> bool:
        """Whether every job has been found."""
        return self._exact is not None and not self._left

    def _add(self, place: JobLocation) -> None:
        self.found.append(place)
        self._left.discard(place.id)

    async def scheduled(self) -> None:
        chosen, limit = ScheduledFilter(ids=self._exact), len(self._exact or ()) or SCHEDULED
        try:
            page = await unless_blocked(
                self._broker, self._broker.scheduled(chosen, limit=limit), grace=ANSWERED_WITHIN
            )
        # the index has too many jobs to wait for, there is an alarm, or this user has no permission to ask the leader
        except (BrokerUnavailable, BrokerRefused) as error:
            self.unseen.append(f"scheduled jobs ({_why(error)})")
            return
        for message in page.messages:
            if self._wanted(message.id):
                self._add(waiting_at(message, scheduled=True, cancelled=message.id in page.cancelled))

    async def waiting(self, queue: str) -> None:
        async for page in self._pages(queue):
            for message in page.messages:
                if self._wanted(message.id):
                    self._add(waiting_at(message, cancelled=message.id in page.cancelled))
            if self.complete:
                return

    async def _pages(self, queue: str) -> AsyncIterator[Page]:
        """The first and last jobs of this queue.

        If it is empty or missing, those of the shortest queues, since the job may have been requeued there.
        """
        sizes = {info.name: info.pending for info in await self._broker.queues() if not is_failed(info.name)}
        names = [queue] if sizes.get(queue) else sorted((name for name in sizes if sizes[name]), key=sizes.__getitem__)
        if len(names) > QUEUES:
            self.unseen.append(f"the {len(names) - QUEUES} longest queues")
        for name in names[:QUEUES]:
            for newest in (False, True) if sizes[name] > DEPTH else (False,):
                try:
                    async with asyncio.timeout(_READ_WITHIN if newest and sizes[name] > _LONG else None):
                        page = await self._broker.browse(name, limit=DEPTH, newest=newest, max_body=MAX_SHOWN)
                except NotBrowsable:
                    self.unseen.append(f"queue {name!r}, which cannot be read")
                    break
                except NotFound:
                    break
                except TimeoutError:
                    rest = f"{sizes[name] - DEPTH:,} wait"
                    self.unseen.append(f"queue {name!r} behind its first {DEPTH} jobs, where {rest}")
                    break
                yield page
            else:
                if (middle := sizes[name] - 2 * DEPTH) > 0:
                    wait = "waits" if middle == 1 else "wait"
                    self.unseen.append(f"the middle of queue {name!r}, where {count(middle, 'job')} {wait}")

    async def running(self) -> None:
        workers = await self._broker.workers()
        for place in running_at(workers, self._wanted):
            self._add(place)
        known = {place.id for place in self.found}
        self.unseen += [
            f"the jobs that worker {worker.id} holds and has not started"
            for worker in workers
            if any(self._wanted(id) and id not in known for id in worker.waiting + worker.taken)
        ]
        if not workers.complete:
            unasked = any(worker.state == UNASKED for worker in workers)
            self.unseen.append(
                "workers that this user has no permission to query" if unasked else "a worker that does not answer"
            )

    async def failed(self) -> None:
        try:
            await unless_blocked(self._broker, self._failed(), grace=ANSWERED_WITHIN)
        except (BrokerBlocked, BrokerRefused) as error:
            self.unseen.append(f"failed jobs ({_why(error)})")

    async def _failed(self) -> None:
        def judge(message: Message) -> SweepDecision:
            if self._wanted(message.id):
                self._add(failed_at(message))
            return Stop() if self.complete else Keep()

        for queue in [info.name for info in await self._broker.queues() if is_failed(info.name)]:
            try:
                await self._broker.browse(queue, limit=0)
                swept = await self._broker.sweep(queue, judge, only_look=True, ids=self._exact or (), most=FAILED)
            except (NotBrowsable, NotFound):  # must not be read, or was just deleted
                continue
            if not self.complete and swept.total > swept.seen:
                self.unseen.append(f"{swept.total - swept.seen:,} failed jobs")


def _why(error: BrokerError) -> str:
    """Why a place cannot be searched, shortened if the error's text is long."""
    return "no permission" if isinstance(error, BrokerRefused) else str(error)
