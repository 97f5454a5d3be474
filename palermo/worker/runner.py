"""The pool of forked slots: each job runs in a process that a template forked.

The parent's half of ProcessRunner talks to the template over one socket pair and to each
slot over another. A job whose process dies under it, in whatever way, comes back as
Raised; only when the worker itself killed it, or never got to start it, as Interrupted.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from palermo.core.failure import Failure, from_exception
from palermo.core.lifecycle import Interrupted, Raised, Result
from palermo.core.message import Message
from palermo.errors import JobCrashed
from palermo.worker.executor import SKIPPED, SUCCEEDED
from palermo.worker.options import WorkerOptions
from palermo.worker.pipe import Frames, Garbage, SlotPipe, pack, pack_message, unpack_reply
from palermo.worker.pool import Registered, Unstartable
from palermo.worker.signals import describe_status, kill
from palermo.worker.template import Template

log = logging.getLogger("palermo.worker")

#: Seconds between attempts to start a slot, at first and at most.
_FORK_PAUSE, _FORK_PAUSE_MAX = 0.1, 10.0

#: Seconds that a slot which closed its pair gets to be reported dead before it is killed.
_LINGER = 0.5

#: Seconds that the template gets to leave by itself.
_LEAVE = 3.0


class _SlotLost(Exception):
    """The pair with a slot has ended; the text says what the slot did, if that was the reason."""


class _Gone(Exception):
    """There is no template to fork slots."""


class _Slot:
    """The parent's view of one slot; a fresh process takes the place of a dead one."""

    __slots__ = ("fate", "number", "pid", "pipe", "waiter")

    def __init__(self, number: int) -> None:
        self.number = number
        self.pipe: SlotPipe | None = None
        self.pid: int | None = None
        #: How its process ended, in words; None when the template that could have told is gone.
        self.fate: asyncio.Future[str | None] | None = None
        #: Who waits for its next answer.
        self.waiter: asyncio.Future[Result] | None = None


class ProcessRunner:
    """Slots as forked children of a template."""

    def __init__(self, control: socket.socket, template: int, *, slots: int) -> None:
        self._control = control
        self._template = template
        self._slots = {number: _Slot(number) for number in range(1, slots + 1)}
        self._by_pid: dict[int, _Slot] = {}
        self._frames = Frames()
        self._hooks: list[asyncio.Future[None]] = []
        self._killed = False
        self._registered: asyncio.Future[Registered]
        self._draining: asyncio.Event
        self.gone: asyncio.Event
        #: How the template ended, in words, once it has.
        self.ending = ""

    @classmethod
    def fork(cls, options: WorkerOptions, *, host: str, in_child: Callable[[], None]) -> "ProcessRunner":
        """Fork the template. To be called before there is an event loop, a connection or a thread.

        `in_child` lets go of what only the parent may hold.
        """
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                in_child()
                Template(theirs, options, parent=parent, host=host).run()
            except BaseException:
                log.exception("template ended by an error of its own")
            finally:
                os._exit(70)
        theirs.close()
        return cls(ours, pid, slots=options.concurrency)

    async def start(self) -> Registered:
        loop = asyncio.get_running_loop()
        self.gone, self._draining = asyncio.Event(), asyncio.Event()
        self._registered = loop.create_future()
        self._control.setblocking(False)
        loop.add_reader(self._control, self._on_template)
        return await self._registered

    async def prepare(self, slot: int) -> None:
        if self._slots[slot].pipe is None:
            with suppress(_Gone):
                await self._start_slot(self._slots[slot])

    async def run(self, slot: int, message: Message) -> Result:
        place = self._slots[slot]
        try:
            if place.pipe is None:
                await self._start_slot(place)
            return await self._ask(place, pack_message("run", message))
        except _SlotLost as error:
            why = await self._fate(place, str(error))
        except _Gone:
            # It never began, so it did nothing wrong.
            return Interrupted()
        if self._killed:
            return Interrupted()
        failure = from_exception(JobCrashed(f"the job's process {why}"), failed_at=int(time.time()))
        await self._tell(place, message, failure)
        return Raised(failure)

    async def hook(self, name: str) -> None:
        if self.gone.is_set():
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hooks.append(done)
        self._order(("hook", name))
        await done

    def drain(self) -> None:
        self._draining.set()

    def kill(self) -> None:
        self._killed = True
        self._draining.set()
        if not self.ending:
            for pid in (*self._by_pid, self._template):
                kill(pid)

    async def close(self) -> None:
        for slot in self._slots.values():
            if slot.pipe is not None:
                slot.pipe.close()
        if not self.gone.is_set():
            with suppress(OSError):
                self._control.shutdown(socket.SHUT_WR)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.gone.wait(), _LEAVE)
        if not self.gone.is_set():
            self.kill()
            await self.gone.wait()
        self._control.close()

    async def _ask(self, slot: _Slot, frame: bytes) -> Result:
        pipe = slot.pipe
        if pipe is None:
            raise _SlotLost
        slot.waiter = asyncio.get_running_loop().create_future()
        pipe.write(frame)
        return await slot.waiter

    async def _tell(self, slot: _Slot, message: Message, failure: Failure) -> None:
        """Have a fresh slot call on_failure hooks and failure back ends for a job that crashed; once."""
        values = {name: getattr(failure, name) for name in Failure.__slots__}
        try:
            await self._start_slot(slot)
            await self._ask(slot, pack_message("crashed", message, values))
        except _SlotLost as error:
            why = await self._fate(slot, str(error))
            log.error("on_failure hooks crashed too id=%s job=%s error=%r", message.id, message.job, why)
        except _Gone:
            log.warning("on_failure hooks not called, no slot to run them id=%s job=%s", message.id, message.job)

    async def _start_slot(self, slot: _Slot) -> None:
        """Have the template fork a process for this slot, for as long as that takes. Raises _Gone."""
        pause = _FORK_PAUSE
        while True:
            if self.gone.is_set() or self._killed:
                raise _Gone
            try:
                await self._fork_slot(slot)
                return
            except (_SlotLost, OSError) as error:
                why = await self._fate(slot, str(error)) if isinstance(error, _SlotLost) else str(error)
            if self.gone.is_set() or self._draining.is_set():
                raise _Gone
            log.error("cannot start slot slot=%d error=%r retry_in=%.1f", slot.number, why, pause)
            stop = [asyncio.ensure_future(event.wait()) for event in (self.gone, self._draining)]
            await asyncio.wait(stop, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            for task in stop:
                task.cancel()
            pause = min(pause * 2, _FORK_PAUSE_MAX)

    async def _fork_slot(self, slot: _Slot) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with theirs:
            slot.fate, slot.pid = loop.create_future(), None
            slot.waiter = ready = loop.create_future()
            pipe = SlotPipe(
                lambda: self._on_result(slot, pipe, SUCCEEDED),
                lambda reply: self._on_reply(slot, pipe, reply),
                lambda why: self._on_end(slot, pipe, why),
            )
            ours.setblocking(False)
            await loop.create_unix_connection(lambda: pipe, sock=ours)
            slot.pipe = pipe
            socket.send_fds(self._control, [pack(("fork", slot.number))], [theirs.fileno()])
        await ready

    def _on_result(self, slot: _Slot, pipe: SlotPipe, result: Result) -> None:
        waiter = slot.waiter
        if waiter is None or waiter.done():
            pipe.abort("sent an answer that nobody asked for")
            return
        slot.waiter = None
        waiter.set_result(result)

    def _on_reply(self, slot: _Slot, pipe: SlotPipe, reply: Mapping[str, Any]) -> None:
        match reply:
            case {"failure": {"exception_class": str(), "message": str(), "stack_trace": str(), "failed_at": int()}}:
                values = reply["failure"]
                failure = Failure(**{name: values[name] for name in Failure.__slots__})
                self._on_result(slot, pipe, Raised(failure))
            case {"skipped": True}:
                self._on_result(slot, pipe, SKIPPED)
            case {"ready": True}:
                self._on_result(slot, pipe, SUCCEEDED)
            case _:
                pipe.abort("sent an answer that means nothing")

    def _on_end(self, slot: _Slot, pipe: SlotPipe, why: str) -> None:
        if slot.pipe is not pipe:
            return
        slot.pipe = None
        waiter, slot.waiter = slot.waiter, None
        if waiter is None:
            if not (self._draining.is_set() or self.gone.is_set()):
                log.warning("slot ended while idle slot=%d pid=%s", slot.number, slot.pid)
        elif not waiter.done():
            waiter.set_exception(_SlotLost(why))

    async def _fate(self, slot: _Slot, why: str) -> str:
        """What became of a slot whose pair has ended, to be said after "the job's process"."""
        assert slot.fate is not None
        if not why:
            await asyncio.wait([slot.fate], timeout=_LINGER)
        if slot.fate.done():
            fate = slot.fate.result()
            return fate or f"ended with the worker's template, which {self.ending}"
        # It lives, cut off from us: its job may do no more harm than it has.
        if slot.pid is not None:
            self._order(("kill", slot.pid))
        await slot.fate
        return f"{why or 'closed its connection to the worker in mid-job'}, and was killed for that"

    def _order(self, frame: tuple[Any, ...]) -> None:
        with suppress(BrokenPipeError, ConnectionError):
            self._control.sendall(pack(frame))

    def _on_template(self) -> None:
        try:
            data = self._control.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            for payload in self._frames.feed(data):
                self._on_report(unpack_reply(payload))
        except Garbage:
            data = b""
        if not data:
            self._on_template_end()

    def _on_report(self, report: Mapping[str, Any]) -> None:
        match report:
            case {"ready": True, "jobs": jobs, "queues": queues, "hooks": hooks}:
                self._registered.set_result(
                    Registered(jobs=_texts(jobs), queues=_texts(queues), hooks=frozenset(_texts(hooks)))
                )
            case {"unstartable": text}:
                self._registered.set_exception(Unstartable(str(text)))
            case {"forked": number, "pid": pid}:
                slot = self._slots[number]
                slot.pid = pid
                self._by_pid[pid] = slot
            case {"unforked": number, "error": text}:
                self._end_of(self._slots[number], f"could not be forked: {text}")
            case {"exited": _, "pid": pid, "status": status}:
                slot = self._by_pid.pop(pid)
                text = describe_status(status)
                self._end_of(slot, text if status < 0 else f"{text} in mid-job")
            case {"hooked": _}:
                done = self._hooks.pop(0)
                if not done.done():
                    done.set_result(None)

    def _end_of(self, slot: _Slot, fate: str | None) -> None:
        if slot.fate is not None and not slot.fate.done():
            slot.fate.set_result(fate)
        if slot.pipe is not None:
            # Something that a job left behind may hold the pair open; what the slot wrote last is read before.
            asyncio.get_running_loop().call_later(_LINGER, slot.pipe.abort, "")

    def _on_template_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._control)
        kill(self._template)
        _, status = os.waitpid(self._template, 0)
        self.ending = describe_status(os.waitstatus_to_exitcode(status))
        self.gone.set()
        if not self._registered.done():
            self._registered.set_exception(Unstartable(f"the process that imports the modules {self.ending}"))
        for done in self._hooks:
            if not done.done():
                done.set_result(None)
        for slot in self._slots.values():
            self._end_of(slot, None)


def _texts(values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(str(value) for value in values)
