"""The pool of forked slots: each job runs in a process that a template forked.

ProcessRunner talks to the template over one socket pair (template_link.py) and to each
slot over another. A job whose process dies under it, in whatever way, comes back as Raised;
only where the worker ends and ended it too, or never got to start it, as Interrupted.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from palermo.core.failure import Failure, from_exception
from palermo.core.lifecycle import Interrupted, Raised, Result
from palermo.core.message import Message
from palermo.errors import JobCancelled, JobCrashed, JobOutOfMemory, JobTimeout
from palermo.worker.executor import CANCELLED, INTERRUPTED, SKIPPED, SUCCEEDED
from palermo.worker.limits import MEMORY_EVERY, Limits
from palermo.worker.options import WorkerOptions
from palermo.worker.pipe import SlotPipe, pack_message
from palermo.worker.place import Place, SlotLost
from palermo.worker.pool import Registered
from palermo.worker.signals import CANCEL, DUMP, TERMINATE, describe_status, kill
from palermo.worker.stacks import StackFile
from palermo.worker.template import Template
from palermo.worker.template_link import TemplateLink

log = logging.getLogger("palermo.worker")

#: Seconds between attempts to start a slot, at first and at most.
_FORK_PAUSE, _FORK_PAUSE_MAX = 0.1, 10.0

#: Seconds that a slot which closed its pair gets to be reported dead before it is killed.
_LINGER = 0.5

#: Seconds that the template, or a slot that is to be replaced, gets to leave by itself.
_LEAVE = 3.0


class _Gone(Exception):
    """There is no template to fork slots."""


class ProcessRunner:
    """Slots as forked children of a template."""

    def __init__(self, control: socket.socket, template: int, *, slots: int, limits: Limits, stacks: StackFile) -> None:
        self._link = TemplateLink(control, template, self)
        self._limits = limits
        self._stacks = stacks
        self._places = {number: Place(number) for number in range(1, slots + 1)}
        self._by_pid: dict[int, Place] = {}
        self._timeouts: Mapping[str, float] = {}
        self._killed = self._terminated = False
        self._draining: asyncio.Event
        self._watch: asyncio.TimerHandle | None = None

    @classmethod
    def fork(cls, options: WorkerOptions, *, host: str, in_child: Callable[[], None]) -> "ProcessRunner":
        """Fork the template, before there is an event loop, a connection or a thread.

        `in_child` lets go of what only the parent may hold.
        """
        ours, theirs = socket.socketpair()
        stacks = StackFile()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                in_child()
                Template(theirs, options, parent=parent, host=host, stacks=stacks.descriptor).run()
            except BaseException:
                log.exception("template ended by an error of its own")
            finally:
                os._exit(70)
        theirs.close()
        return cls(ours, pid, slots=options.concurrency, limits=options.limits, stacks=stacks)

    @property
    def gone(self) -> asyncio.Event:
        return self._link.gone

    @property
    def ending(self) -> str:
        """How the template ended, once it has."""
        return self._link.ending

    @property
    def template(self) -> int:
        """Its pid."""
        return self._link.pid

    async def start(self) -> Registered:
        self._draining = asyncio.Event()
        registered = await self._link.start()
        self._timeouts = registered.timeouts
        if self._limits.max_memory is not None:
            self._watch_memory()
        return registered

    async def prepare(self, slot: int) -> None:
        with suppress(_Gone):
            await self._ready(self._places[slot])

    async def run(self, slot: int, message: Message) -> Result:
        place = self._places[slot]
        if self._limits.max_lifetime is not None and place.pipe is not None:
            self._replace_if_worn(place)
        try:
            await self._ready(place)
            result = await self._supervise(place, message)
        except SlotLost as error:
            why = await self._fate(place, str(error))
        except _Gone:
            # It never began, so it did nothing wrong.
            return INTERRUPTED
        else:
            self._replace_if_worn(place)
            return result
        sentence, place.sentence = place.sentence, None
        if self._killed or self._terminated:
            return INTERRUPTED
        if isinstance(sentence, JobCancelled):
            return CANCELLED
        failure = from_exception(sentence or JobCrashed(f"the job's process {why}"), failed_at=int(time.time()))
        await self._tell(place, message, failure)
        return Raised(failure)

    async def hook(self, name: str) -> None:
        await self._link.hook(name)

    async def stack(self, slot: int) -> str:
        place = self._places[slot]
        if place.message is None or place.pid is None:
            return ""
        self._stacks.clear()
        self._link.order(("signal", place.pid, DUMP))
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
        if place.pid is not None:
            place.signalled = True
            self._link.order(("signal", place.pid, CANCEL))
        loop, error = asyncio.get_running_loop(), JobCancelled("")
        loop.call_later(self._limits.timeout_grace, self._condemn, place, message, error)

    def terminate(self) -> None:
        self._terminated = True
        for place in self._places.values():
            if place.message is not None and place.pid is not None:
                self._link.order(("signal", place.pid, TERMINATE))

    def drain(self) -> None:
        self._draining.set()

    def kill(self) -> None:
        self._killed = True
        self._draining.set()
        if not self.ending:
            for pid in (*self._by_pid, self._link.pid):
                kill(pid)

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        for place in self._places.values():
            if place.replacing is not None:
                place.replacing.cancel()
            if place.pipe is not None:
                place.pipe.close()
        await self._link.leave(within=_LEAVE, kill=self.kill)
        self._stacks.close()

    # One job.

    async def _supervise(self, place: Place, message: Message) -> Result:
        """Have the slot run the job, and see to its time limit."""
        timeout = message.timeout
        if timeout is None:
            timeout = self._timeouts.get(message.job, self._limits.timeout)
            if timeout is not None:
                message = replace(message, timeout=timeout)
        place.message = message
        timer: asyncio.TimerHandle | None = None
        if timeout is not None:
            grace = self._limits.timeout_grace
            text = f"the job's process was killed: it ran {grace:g} s longer than its timeout of {timeout:g} s"
            loop = asyncio.get_running_loop()
            timer = loop.call_later(timeout + grace, self._condemn, place, message, JobTimeout(text))
        try:
            return await place.ask(pack_message("run", message))
        finally:
            place.message = None
            place.cancelling = False
            place.jobs += 1
            if timer is not None:
                timer.cancel()

    def _condemn(self, place: Place, message: Message, error: Exception) -> None:
        """Kill the process of a job that runs, which then fails with this error."""
        if place.message is not message or place.sentence is not None:
            return
        if place.pid is None:
            # It lives, and the template's word of it is on its way.
            asyncio.get_running_loop().call_later(_LINGER, self._condemn, place, message, error)
            return
        place.sentence = error
        self._link.order(("kill", place.pid))

    def _watch_memory(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(MEMORY_EVERY, self._watch_memory)
        for place in self._places.values():
            if place.message is not None and (why := self._limits.bloated(place.pid)):
                self._condemn(place, place.message, JobOutOfMemory(f"the job's process was killed: {why}"))

    async def _tell(self, place: Place, message: Message, failure: Failure) -> None:
        """Have a fresh slot call on_failure hooks and failure back ends for a job that crashed; once."""
        values = {name: getattr(failure, name) for name in Failure.__slots__}
        try:
            await self._start_slot(place)
            await place.ask(pack_message("crashed", message, values))
        except SlotLost as error:
            why = await self._fate(place, str(error))
            log.error("on_failure hooks crashed too id=%s job=%s error=%r", message.id, message.job, why)
        except _Gone:
            log.warning("on_failure hooks not called, no slot to run them id=%s job=%s", message.id, message.job)

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
        assert place.fate is not None
        pipe, place.pipe = place.pipe, None
        if pipe is not None:
            pipe.close()
        await asyncio.wait([place.fate], timeout=_LEAVE)
        if not place.fate.done():
            self._link.order(("kill", place.pid))
            await place.fate
        with suppress(_Gone):
            if not self._draining.is_set():
                await self._start_slot(place)
        place.replacing = None  # not before: its first answer would be taken for a job's

    async def _ready(self, place: Place) -> None:
        """See that the slot has a process. Raises _Gone."""
        if place.replacing is not None:
            await place.replacing
        if place.pipe is None:
            await self._start_slot(place)

    async def _start_slot(self, place: Place) -> None:
        """Have the template fork a process for this slot, for as long as that takes. Raises _Gone."""
        pause = _FORK_PAUSE
        while True:
            if self.gone.is_set() or self._killed:
                raise _Gone
            try:
                await self._fork_slot(place)
                return
            except (SlotLost, OSError) as error:
                why = await self._fate(place, str(error)) if isinstance(error, SlotLost) else str(error)
            if self.gone.is_set() or self._draining.is_set():
                raise _Gone
            log.error("cannot start slot slot=%d error=%r retry_in=%.1f", place.number, why, pause)
            stop = [asyncio.ensure_future(event.wait()) for event in (self.gone, self._draining)]
            await asyncio.wait(stop, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            for task in stop:
                task.cancel()
            pause = min(pause * 2, _FORK_PAUSE_MAX)

    async def _fork_slot(self, place: Place) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            ready = place.renew()
            pipe = SlotPipe(
                lambda: place.answered(pipe, SUCCEEDED),
                lambda reply: self._on_reply(place, pipe, reply),
                lambda why: self._on_end(place, pipe, why),
            )
            ours.setblocking(False)
            await loop.create_unix_connection(lambda: pipe, sock=ours)
            place.pipe = pipe
            self._link.fork(place.number, theirs)
        await ready

    def _on_reply(self, place: Place, pipe: SlotPipe, reply: Mapping[str, Any]) -> None:
        match reply:
            case {"failure": {"exception_class": str(), "message": str(), "stack_trace": str(), "failed_at": int()}}:
                values = reply["failure"]
                failure = Failure(**{name: values[name] for name in Failure.__slots__})
                place.answered(pipe, Raised(failure))
            case {"skipped": True}:
                place.answered(pipe, SKIPPED)
            case {"interrupted": True} if self._terminated:
                place.answered(pipe, Interrupted())
            case {"cancelled": True} if place.cancelling:
                place.answered(pipe, CANCELLED)
            case {"ready": True}:
                place.answered(pipe, SUCCEEDED)
            case _:
                pipe.abort("sent an answer that means nothing")

    def _on_end(self, place: Place, pipe: SlotPipe, why: str) -> None:
        if place.pipe is pipe and not place.lost(why) and not (self._draining.is_set() or self.gone.is_set()):
            log.warning("slot ended while idle slot=%d pid=%s", place.number, place.pid)

    async def _fate(self, place: Place, why: str) -> str:
        """What became of a slot whose pair has ended, to be said after "the job's process"."""
        assert place.fate is not None
        if not why:
            await asyncio.wait([place.fate], timeout=_LINGER)
        if place.fate.done():
            fate = place.fate.result()
            return fate or f"ended with the worker's template, which {self.ending}"
        # It lives, cut off from us: its job may do no more harm than it has.
        if place.pid is not None:
            self._link.order(("kill", place.pid))
        await place.fate
        return f"{why or 'closed its connection to the worker in mid-job'}, and was killed for that"

    # What the template reports.

    def forked(self, number: int, pid: int) -> None:
        place = self._places[number]
        place.pid = pid
        self._by_pid[pid] = place

    def unforked(self, number: int, error: str) -> None:
        self._places[number].ended(f"could not be forked: {error}", _LINGER)

    def exited(self, pid: int, status: int) -> None:
        text = describe_status(status)
        self._by_pid.pop(pid).ended(text if status < 0 else f"{text} in mid-job", _LINGER)

    def template_ended(self) -> None:
        for place in self._places.values():
            place.ended(None, _LINGER)
