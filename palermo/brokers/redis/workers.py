"""Workers, as Redis knows them: their leases, what they report, and the commands to them.

A worker's jobs are its own as long as its lease goes on, which it renews again and again. When the lease has ended, any
other worker gives the jobs back to their queues; and what the late worker still settles is refused. If nobody could
renew a lease for a while, because Redis was away, all workers first get the time to come back (scripts/worker.lua).
"""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct, convert
from msgspec.structs import replace

from palermo.brokers.redis.store import Store
from palermo.contract.stored_records import read_record
from palermo.contract.worker_info import (
    CommandReply,
    OnCommand,
    WorkerCommand,
    WorkerInfo,
    WorkerList,
    stored_patterns,
    stored_worker,
    unidentified_worker,
)
from palermo.errors import BrokerError

#: Seconds after which a worker that has not renewed its lease has lost its jobs: a job whose worker was killed runs
#: again within five seconds.
LEASE = 4.0

#: Seconds between two renewals. Others must know within a second what a worker does.
INTERVAL = 0.25

#: Renewals between two looks for jobs without being woken, since a message between sessions may be lost.
_LOOK_EVERY = 4

#: Seconds without a renewal after which a worker does not answer: it is stopped, or swapped out.
_SILENT_AFTER = 2.0

#: Seconds between two looks whether a worker that must answer still lives.
_CHECK_EVERY = 0.25

#: Seconds that a worker has for its last answers when it stops.
_ANSWER_TIMEOUT = 1.0


class _Reply(Struct, frozen=True):
    """A worker's answer to a command; without values if the command was not for it."""

    worker: str
    values: dict[str, Any] | None


class LivingWorker(Struct, frozen=True):
    """A worker whose lease goes on."""

    info: WorkerInfo
    #: The patterns of the queues that it serves.
    patterns: tuple[str, ...]


def living(now: float, rows: list[Any]) -> list[LivingWorker]:
    """The workers in an answer of scripts/look.lua, which tells the time with them."""
    found: list[LivingWorker] = []
    for number, (lease, tag, selection, report, _) in enumerate(rows):
        if not tag or float(lease) <= now:
            continue
        seen_at = float(lease) - LEASE
        worker = stored_worker(tag, report) or unidentified_worker(number)
        info = replace(worker, seen_at=seen_at, answers=now - seen_at < _SILENT_AFTER)
        found.append(LivingWorker(info, stored_patterns(tag, selection)))
    return found


async def list_workers(store: Store) -> WorkerList:
    """All workers that are alive."""
    now, rows = await store.run("look", "workers")
    return WorkerList(worker.info for worker in living(float(now), rows))


async def send_command(store: Store, command: WorkerCommand, *, timeout: float) -> list[CommandReply]:
    """See palermo.contract.broker.Broker.command."""
    deadline = time.monotonic() + timeout
    channel = f"reply:{secrets.token_hex(8)}"
    answers: dict[str, Mapping[str, Any] | None] = {}
    told = asyncio.Event()

    def on_reply(text: bytes) -> None:
        if text:
            reply = read_record(
                lambda plain: convert(plain, _Reply), text, what="an answer", name=channel, remedy="ask again"
            )
            if reply is not None:
                answers[reply.worker] = reply.values
        told.set()

    await store.listen(channel, on_reply)
    try:
        waiting = {one.id for one in await list_workers(store) if command.is_for(one.id)}
        text = json.dumps({"reply": channel, "command": command.to_plain()})
        await store.call("PUBLISH", store.key(store.commands), text)
        while (waiting := waiting - answers.keys()) and (left := deadline - time.monotonic()) > 0:
            told.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, _CHECK_EVERY)):
                    await told.wait()
                    continue
            waiting &= {one.id for one in await list_workers(store)}
    finally:
        await store.unlisten(channel, on_reply)
    return [
        CommandReply(worker=worker, values=values) for worker, values in sorted(answers.items()) if values is not None
    ]


class CommandListener:
    """Hears the commands to one worker and the cancels of its jobs, and obeys them."""

    def __init__(self, store: Store, worker: str, on_command: OnCommand, holds: Callable[[str], bool]) -> None:
        """`holds` says whether the worker holds a job with this id."""
        self._store = store
        self._worker = worker
        self._on_command = on_command
        self._holds = holds
        self._answering: set[asyncio.Task[object]] = set()

    async def start(self) -> None:
        """Hear commands from now on."""
        await self._store.listen(self._store.commands, self._on_message)
        await self._store.listen(self._store.cancels, self._on_cancel)

    async def end(self) -> None:
        """Wait for the last answers to be sent, then stop."""
        await self._store.unlisten(self._store.commands, self._on_message)
        await self._store.unlisten(self._store.cancels, self._on_cancel)
        if self._answering:
            await asyncio.wait(set(self._answering), timeout=_ANSWER_TIMEOUT)
        for task in self._answering:
            task.cancel()

    def _on_message(self, text: bytes) -> None:
        if not text:
            return
        found = read_record(
            lambda plain: (WorkerCommand.from_plain(plain["command"]), str(plain["reply"])),
            text,
            what="a command to workers",
            name=self._store.commands,
            remedy="give it again",
        )
        if found is not None and found[0].is_for(self._worker):
            self._begin(self._answer(*found))

    def _on_cancel(self, text: bytes) -> None:
        if not text:
            return
        ids, by = read_record(
            lambda plain: (convert(plain["ids"], list[str]), str(plain["by"])),
            text,
            what="a cancel of jobs",
            name=self._store.cancels,
            remedy="cancel them again",
        ) or ([], "")
        for id in ids:
            if self._holds(id):
                self._begin(self._on_command(WorkerCommand(action="cancel", id=id, by=by)))

    def _begin(self, work: Awaitable[object]) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(work)
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, command: WorkerCommand, channel: str) -> None:
        values = await self._on_command(command)
        text = json.dumps({"worker": self._worker, "values": None if values is None else dict(values)})
        # A session that is lost is noticed elsewhere.
        with contextlib.suppress(BrokerError):
            await self._store.call("PUBLISH", self._store.key(channel), text)


class Heartbeat:
    """Renews the lease of one worker, again and again, with its report."""

    def __init__(self, store: Store, holder: str, report: Callable[[], WorkerInfo], reported: WorkerInfo) -> None:
        """`reported` is the report that Redis has already."""
        self._store = store
        self._holder = holder
        self._report = report
        self._reported = reported

    async def run(self, look: Callable[[], None]) -> None:
        """Go on until this is cancelled, and call `look` now and then. Raises BrokerError."""
        beats = 0
        while True:
            await asyncio.sleep(INTERVAL)
            report = self._report()
            text = "" if report == self._reported else json.dumps(report.to_plain())
            if not await self._store.run("worker", "beat", self._holder, LEASE, text):
                raise self._store.taken_for_dead()
            self._reported = report
            beats += 1
            if beats % _LOOK_EVERY == 0:
                look()
