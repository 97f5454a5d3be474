"""One worker's consumer: takes jobs from Redis and settles them.

One script at a time deletes finished jobs, and claims the next ones for all waiting slots. So one call serves all slots
whose jobs end during the previous call or shortly after (group_commit.py). If the script finds too few jobs, it also
marks the worker as idle, so that the next job wakes it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from random import random
from typing import Any

import msgpack
from msgspec.structs import replace
from redis.exceptions import NoScriptError

from palermo.brokers.features.consumer import Claim, StepConsumer
from palermo.brokers.features.pauses_and_cancels import cancelled_by, paused_in
from palermo.brokers.features.served_queues import ServedQueues
from palermo.brokers.features.steps import Refused, text_of
from palermo.brokers.redis.group_commit import GroupCommit
from palermo.brokers.redis.jobs import from_blob
from palermo.brokers.redis.store import Store
from palermo.brokers.redis.workers import RedisHeartbeat
from palermo.contract.admission import runs_alone
from palermo.contract.broker import Delivery
from palermo.contract.tasks import spawn
from palermo.contract.worker_info import OnCommand, WorkerInfo
from palermo.core.fair_scheduling import stride
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerError

log = logging.getLogger("palermo.redis")


class RedisConsumer(StepConsumer):
    """Takes jobs for the slots of one worker."""

    def __init__(
        self,
        store: Store,
        *,
        holder: str,
        selection: QueueSelection,
        report: Callable[[], WorkerInfo],
        reported: WorkerInfo,
        on_command: OnCommand,
        order: str,
    ) -> None:
        """`order` is the order in which the tenants of a queue are served."""
        heartbeat = RedisHeartbeat(store, holder, report, reported)
        super().__init__(store, heartbeat, on_command, f"Redis at {store.server}")
        self._store = store
        #: The worker's id in Redis.
        self.holder = holder
        self._order = order
        self._served = ServedQueues(selection)
        #: The running script, if any.
        self._working: asyncio.Future[Any] | None = None
        self._group = GroupCommit()
        #: The timer that starts the script after a wait for other slots.
        self._waiting: asyncio.TimerHandle | None = None
        #: Whether to run the script again when it has ended, and whether Redis has woken the worker.
        self._again = False
        self._woken = False
        #: Number of jobs in the message that woke the worker.
        self._given = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        await self._read_queues()
        for channel in (f"wake:{self.holder}", "bell:queues"):
            await self._store.listen(channel, self._on_wake)
        await super().start()

    async def queues_with_jobs(self) -> set[str]:
        _, names, _, _ = await self._store.run("look", "queues")
        await self._read_queues()
        return {text_of(name) for name, waiting in names if waiting and text_of(name) in self._served}

    async def flush(self) -> None:
        """Delete finished jobs now, and release jobs that no slot waits for any more."""
        await self.end_steps()
        while self._lost is None and (self._done or self._working is not None or self._tasks):
            if self._done:
                self._start_script()
            pending = [*self._tasks, *([self._working] if self._working is not None else [])]
            if pending:
                await asyncio.wait(pending)
            await asyncio.sleep(0)

    async def _leave(self, *, cut_off: bool) -> None:
        for channel in (f"wake:{self.holder}", "bell:queues"):
            await self._store.unlisten(channel, self._on_wake)
        with contextlib.suppress(BrokerError):
            await self._store.run("worker", "leave", self.holder, self._worker if cut_off else "")

    async def _read_queues(self) -> None:
        # Read the version first, so that a queue created in the meantime causes another read.
        version = await self._store.call("GET", self._store.key("version"))
        names = {text_of(name) for name in await self._store.call("HKEYS", self._store.key("queues"))}
        self._served.update(version or b"0", names, paused_in(await self._store.fields("pauses")))

    # -- claiming ------------------------------------------------------------

    def _work(self) -> None:
        """Start the script, unless it is better to wait for other slots to finish their jobs."""
        # Measured with two slots, `always`, paired turns and loads of 3 to 14: 1.08 to 1.17 times as many jobs with
        # writes of 1 ms.
        if self._done and not self._woken and (wait := self._group.wait()) > 0:
            self._scheduled = False
            if self._waiting is None:
                self._waiting = self._loop.call_later(wait, self._start_script)
            return
        self._start_script()

    def _start_script(self) -> None:
        self._scheduled = False
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._working is not None or self._lost is not None:
            self._again = True  # the running script starts the next one
            return
        wanted = len(self._free_slots())
        if not wanted and not self._done and not self._woken:
            return
        if self._served.shared:
            wanted = min(wanted, 1)
        self._woken = self._again = False
        done = [value for claim in self._done for value in (claim.number, claim.times)]
        step = stride(1.0, self._order, random())
        self._working = self._store.begin(
            "work",
            *(self.holder, self._served.version, wanted, step, self._given),
            *(len(self._done), *done, *self._served.order()),
        )
        self._group.script_sent()
        self._working.add_done_callback(partial(self._worked, len(self._done)))

    def _worked(self, deleting: int, working: "asyncio.Future[Any]") -> None:
        """Handle the result of a script that deleted `deleting` jobs."""
        self._working = None
        if working.cancelled():
            return
        error = working.exception()
        if isinstance(error, NoScriptError):
            self._begin(self._store.reload(), self._work_soon)
            return
        if error is not None:
            self._lose(self._store.translated(error))
            return
        self._group.script_answered()
        answer = working.result()
        del self._done[:deleting]
        if answer[0] == b"gone" or answer[1] < deleting:
            self._lose(self._store.lease_expired())
        elif answer[0] == b"old":
            self._begin(self._read_queues(), self._work_soon)
        else:
            for job in answer[3]:
                self._hand_out(self._delivery(job))
            if self._done or self._woken or self._again or (self._served.shared and answer[3]):
                self._work_soon()

    def _hand_out(self, delivery: Delivery) -> None:
        """Deliver a job to a waiting slot, or release it to its queue."""
        slots = self._free_slots()
        if not slots:
            self._begin(self._release(delivery.token))
            return
        self._group.job_began(slots[0])
        super()._hand_out(replace(delivery, slot=slots[0]))

    def _delivery(self, job: Sequence[bytes], slot: int = 0) -> Delivery:
        number, times, queue, deaths, mark, blob, *runs_at = job
        message = from_blob(blob, text_of(queue))
        by = cancelled_by(mark, message)
        return Delivery(
            message=message,
            slot=slot,
            token=Claim(number.decode(), self.holder, times.decode(), message.id),
            redelivered=times != b"1",
            cancelled=by is not None,
            cancelled_by=by or "",
            deaths=tuple(text_of(deaths).split()),
            running_at=text_of(runs_at[0]) if runs_at else "",
        )

    async def _claim_similar(self, delivery: Delivery) -> tuple[bool, Delivery | None]:
        """Claim another job of the delivery's queue, to run together with it.

        Returns whether the queue has another job, and the job, or None if it was not claimed.
        """
        queue = delivery.message.queue
        if queue not in self._served:
            return True, None
        while True:
            look = (self.holder, queue, stride(1.0, self._order, random()))
            found = await self._store.run("similar", *look, "")
            if len(found) < 4:
                self._check_gone(found)
                return False, None
            number, claims, mark, blob = found
            message = from_blob(blob, queue)
            cancelled = cancelled_by(mark, message) is not None
            if claims != b"0" or cancelled or message.job != delivery.message.job or runs_alone(message):
                return True, None
            job = await self._store.run("similar", *look, number)
            if len(job) > 1:
                return True, self._delivery(job, delivery.slot)
            self._check_gone(job)

    def _check_gone(self, answer: Sequence[bytes]) -> None:
        if answer and answer[0] == b"gone":
            self._lose(self._store.lease_expired())
            self._check()

    async def _release(self, claim: Claim) -> None:
        with contextlib.suppress(BrokerError, Refused):
            await self._store.change([claim.still_valid], [("release", self.holder, claim.number)])

    def _on_wake(self, text: bytes) -> None:
        """Redis reports that there are new jobs, or sends one that it has claimed for this worker."""
        if self._store.lost.done():
            self._lose(self._store.lost.result())
            return
        if not text:
            self._woken = True
        elif self._lost is None:
            self._given += 1
            self._hand_out(self._delivery(msgpack.unpackb(text, raw=True)))
        self._look()

    def _free_slot(self, slot: int) -> None:
        self._group.job_ended(slot)
        super()._free_slot(slot)

    def _begin(self, work: Any, then: Callable[[], None] | None = None) -> None:
        """Run an action in a task."""

        async def do() -> None:
            try:
                await work
            except BrokerError as error:
                self._lose(error)
            if then is not None:
                then()

        spawn(self._tasks, do())
