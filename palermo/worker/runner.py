"""The pool of forked slots: each job runs in a process that a template forked.

ProcessRunner talks to the template over one socket pair (template_link.py) and to each
slot over another. A job whose process dies under it, in whatever way, comes back as Raised;
only where the worker ends and ended it too, or never got to start it, as Interrupted.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from palermo.core.failure import Failure, from_exception
from palermo.core.lifecycle import CANCELLED, INTERRUPTED, Cancelled, Interrupted, Raised, RunResult
from palermo.core.message import Message
from palermo.errors import JobCancelled, JobCrashed, JobOutOfMemory, JobTimeout
from palermo.worker.children import LINGER, Children, Gone, SlotLost
from palermo.worker.keeping import SUCCEEDED
from palermo.worker.limits import MEMORY_EVERY, Limits, lock_expired
from palermo.worker.pipe import SlotPipe, judged, pack_message, unpack_results
from palermo.worker.place import Place
from palermo.worker.pool import OnReport, Registered, unheard
from palermo.worker.reporting import unpack_report
from palermo.worker.signals import CANCEL, DUMP, TERMINATE
from palermo.worker.stacks import StackFile

log = logging.getLogger("palermo.worker")


class ProcessRunner:
    """Slots as forked children of a template."""

    def __init__(self, children: Children, *, slots: int, limits: Limits, stacks: StackFile) -> None:
        self.on_report: OnReport = unheard
        self._children = children
        self._limits = limits
        self._stacks = stacks
        self._places = {number: Place(number) for number in range(1, slots + 1)}
        self._timeouts: Mapping[str, float] = {}
        self._locks: Mapping[str, float] = {}
        self._terminated = False
        #: For jobs that nobody waits for: what finds out why their processes ended.
        self._mourning: set[asyncio.Task[RunResult]] = set()
        self._watch: asyncio.TimerHandle | None = None

    @property
    def gone(self) -> asyncio.Event:
        return self._children.gone

    @property
    def ending(self) -> str:
        """How the template ended, once it has."""
        return self._children.link.ending

    @property
    def template(self) -> int:
        """Its pid."""
        return self._children.link.pid

    async def start(self) -> Registered:
        registered = await self._children.open()
        self._timeouts, self._locks = registered.timeouts, registered.locks
        if self._limits.max_memory is not None:
            self._watch_memory()
        return registered

    async def prepare(self, slot: int) -> None:
        with suppress(Gone):
            await self._ready(self._places[slot])

    async def run(self, slot: int, message: Message) -> RunResult:
        place = self._places[slot]
        if self._limits.max_lifetime is not None and place.pipe is not None:
            self._replace_if_worn(place)
        try:
            await self._ready(place)
            frame = self._enter(place, message)
            try:
                result = await place.ask(frame)
            finally:
                place.over()
        except SlotLost as error:
            return await self._after(place, message, str(error))
        except Gone:
            # It never began, so it did nothing wrong.
            return INTERRUPTED
        self._replace_if_worn(place)
        return result

    def begin(self, slot: int, message: Message, done: Callable[[RunResult], None]) -> bool:
        place = self._places[slot]
        if not place.ready or self._limits.max_lifetime is not None:
            return False
        frame = self._enter(place, message)
        place.done = done
        assert place.pipe is not None
        place.pipe.write(frame)
        return True

    async def hook(self, name: str) -> None:
        await self._children.link.hook(name)

    async def stack(self, slot: int) -> str:
        place = self._places[slot]
        if place.message is None or place.pid is None:
            return ""
        self._stacks.clear()
        self._children.signal(place, DUMP)
        return await self._stacks.answer()

    def kill_jobs(self) -> None:
        for place in self._places.values():
            if place.message is not None:
                error = JobCrashed("the job's process was killed by the operator (USR1)")
                self._condemn(place, place.message, error)

    def cancel(self, slot: int) -> None:
        place = self._places[slot]
        message = place.message
        if message is None:
            return
        place.cancelling = True
        place.signalled = True
        self._children.signal(place, CANCEL)
        loop, error = asyncio.get_running_loop(), JobCancelled("")
        loop.call_later(self._limits.timeout_grace, self._condemn, place, message, error)

    def terminate(self) -> None:
        self._terminated = True
        for place in self._places.values():
            if place.message is not None:
                self._children.signal(place, TERMINATE)

    def drain(self) -> None:
        self._children.draining.set()

    def kill(self) -> None:
        self._children.kill()

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        for place in self._places.values():
            if place.replacing is not None:
                place.replacing.cancel()
            if place.pipe is not None:
                place.pipe.close()
        await self._children.close()
        self._stacks.close()

    # One job.

    def _enter(self, place: Place, message: Message) -> bytes:
        """The job is its now, with a time limit if it has one; what is to be sent to the process."""
        place.message = message = self._limits.limited(message, self._timeouts, self._locks)
        timeout, lock_for = message.timeout, message.lock_for
        if timeout is None and lock_for is None:
            return pack_message("run", message)
        loop = asyncio.get_running_loop()
        if lock_for is not None:
            place.timers.append(loop.call_later(lock_for, self._condemn, place, message, lock_expired(lock_for)))
        if timeout is not None:
            grace = self._limits.timeout_grace
            text = f"the job's process was killed: it ran {grace:g} s longer than its timeout of {timeout:g} s"
            end = loop.call_later(timeout + grace, self._condemn, place, message, JobTimeout(text))
            place.timers.append(end)
        return pack_message("run", message)

    def _answered(self, place: Place, pipe: SlotPipe, result: RunResult) -> None:
        done = place.done
        if done is None or place.pipe is not pipe:
            place.answered(pipe, result)
            return
        place.over()
        self._replace_if_worn(place)
        done(result)

    async def _after(self, place: Place, message: Message, error: str) -> RunResult:
        """What becomes of a job whose process was lost under it."""
        why = await self._children.fate(place, error)
        sentence, place.sentence = place.sentence, None
        if self._children.killed or self._terminated:
            return INTERRUPTED
        if isinstance(sentence, JobCancelled):
            return CANCELLED
        failure = from_exception(sentence or JobCrashed(f"the job's process {why}"), failed_at=int(time.time()))
        return await self._ask_policy(place, message, failure)

    def _condemn(self, place: Place, message: Message, error: Exception) -> None:
        """Kill the process of a job that runs, which then fails with this error."""
        if place.message is not message or place.sentence is not None:
            return
        if place.pid is None:
            # It lives, and the template's word of it is on its way.
            asyncio.get_running_loop().call_later(LINGER, self._condemn, place, message, error)
            return
        place.sentence = error
        self._children.condemn(place)

    def _watch_memory(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(MEMORY_EVERY, self._watch_memory)
        for place in self._places.values():
            if place.message is not None and (why := self._limits.bloated(place.pid)):
                self._condemn(place, place.message, JobOutOfMemory(f"the job's process was killed: {why}"))

    async def _ask_policy(self, place: Place, message: Message, failure: Failure) -> RunResult:
        """Have a fresh slot say what becomes of a job that crashed, and call its hooks; once."""
        values = {name: getattr(failure, name) for name in Failure.__slots__}
        try:
            await self._start_slot(place)
            return judged(await place.ask(pack_message("crashed", message, values)), failure)
        except SlotLost as error:
            why = await self._children.fate(place, str(error))
            log.error("on_failure hooks crashed too id=%s job=%s error=%r", message.id, message.job, why)
        except Gone:
            log.warning("on_failure hooks not called, no slot to run them id=%s job=%s", message.id, message.job)
        # Nobody can be asked what its policy is.
        return Raised(failure)

    def _mourned(self, ended: "asyncio.Task[RunResult]", done: Callable[[RunResult], None]) -> None:
        self._mourning.discard(ended)
        if ended.cancelled():
            return
        if (error := ended.exception()) is not None:
            log.error("cannot tell why a slot ended, giving its job back: a bug", exc_info=error)
        done(ended.result() if error is None else INTERRUPTED)

    # Slots come and go.

    def _replace_if_worn(self, place: Place) -> None:
        """Begin to give the slot a fresh process, if it is due; its next job waits for that."""
        if place.sentence is None and not place.signalled and not self._limits.wear:
            return
        # Condemned, and yet in time with its answer: what will be killed must not get another job.
        why = "it was condemned" if place.sentence is not None else ""
        # By way of the template it may come late, and would break into the next job.
        why = why or ("a job was cancelled in it" if place.signalled else "")
        why = why or self._limits.worn(jobs=place.jobs, age=time.monotonic() - place.born, pid=place.pid)
        if why and place.replacing is None:
            level = logging.DEBUG if self._limits.max_jobs else logging.INFO
            log.log(level, "slot replaced slot=%d pid=%s reason=%r", place.number, place.pid, why)
            place.replacing = asyncio.ensure_future(self._replace(place))

    async def _replace(self, place: Place) -> None:
        await self._children.end(place)
        with suppress(Gone):
            if not self._children.draining.is_set():
                await self._start_slot(place)
        place.replacing = None  # not before: its first answer would be taken for a job's

    async def _ready(self, place: Place) -> None:
        """See that the slot has a process. Raises Gone."""
        if place.replacing is not None:
            await place.replacing
        if place.pipe is None:
            await self._start_slot(place)

    async def _start_slot(self, place: Place) -> None:
        """Raises Gone."""

        def connect() -> SlotPipe:
            pipe = SlotPipe(
                lambda _: self._answered(place, pipe, SUCCEEDED),
                lambda reply: self._on_reply(place, pipe, reply),
                lambda why: self._on_end(place, pipe, why),
            )
            return pipe

        await self._children.launch(place, connect)

    def _on_reply(self, place: Place, pipe: SlotPipe, reply: Mapping[str, Any]) -> None:
        if reply == {"ready": True}:
            place.answered(pipe, SUCCEEDED)
            return
        report = unpack_report(reply)
        if report is not None:
            if place.pipe is pipe and place.message is not None:
                self.on_report(place.number, report)
            return
        result = unpack_results(reply)
        match result:
            case None:
                pipe.abort("sent an answer that means nothing")
            case Interrupted() if not self._terminated:
                pipe.abort("sent an answer that means nothing")
            case Cancelled() if not place.cancelling:
                pipe.abort("sent an answer that means nothing")
            case _:
                self._answered(place, pipe, result)

    def _on_end(self, place: Place, pipe: SlotPipe, why: str) -> None:
        if place.pipe is not pipe:
            return
        message, done = place.message, place.done
        if place.lost(why):
            return
        if done is not None and message is not None:
            place.over()
            task = asyncio.ensure_future(self._after(place, message, why))
            self._mourning.add(task)
            task.add_done_callback(lambda ended: self._mourned(ended, done))
            return
        if not (self._children.draining.is_set() or self.gone.is_set()):
            log.warning("slot ended while idle slot=%d pid=%s", place.number, place.pid)
