"""Commands to workers, and cancels of their jobs, as messages that each worker reads."""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct, convert

from palermo.brokers.features.steps import StepStore
from palermo.contract.stored_records import read_record
from palermo.contract.tasks import spawn, wait_for_any
from palermo.contract.worker_info import CommandReply, OnCommand, WorkerCommand, WorkerList
from palermo.errors import BrokerError

#: Seconds between two checks whether the workers that haven't answered are alive.
_CHECK_EVERY = 0.25

#: Seconds that a stopping worker has for its last replies.
_ANSWER_TIMEOUT = 1.0


class _Reply(Struct, frozen=True):
    """A worker's reply to a command. Without values if the command was not for this worker."""

    worker: str
    values: dict[str, Any] | None


async def send_command(
    store: StepStore, workers: Callable[[], Awaitable[WorkerList]], command: WorkerCommand, *, timeout: float
) -> list[CommandReply]:
    """See palermo.contract.broker.Broker.command. `workers` lists the living workers."""
    deadline = time.monotonic() + timeout
    channel = f"reply:{secrets.token_hex(8)}"
    answers: dict[str, Mapping[str, Any] | None] = {}
    changed = asyncio.Event()

    def on_reply(text: bytes) -> None:
        if text:
            reply = read_record(
                lambda plain: convert(plain, _Reply), text, what="an answer", name=channel, remedy="ask again"
            )
            if reply is not None:
                answers[reply.worker] = reply.values
        changed.set()

    await store.listen(channel, on_reply)
    try:
        waiting = {one.id for one in await workers() if command.is_for(one.id)}
        await store.publish(store.commands, json.dumps({"reply": channel, "command": command.to_plain()}))
        while (waiting := waiting - answers.keys()) and (left := deadline - time.monotonic()) > 0:
            changed.clear()
            await wait_for_any(changed, timeout=min(left, _CHECK_EVERY))
            if not changed.is_set():
                waiting &= {one.id for one in await workers()}
    finally:
        await store.unlisten(channel, on_reply)
    return [
        CommandReply(worker=worker, values=values) for worker, values in sorted(answers.items()) if values is not None
    ]


class CommandListener:
    """Reads and executes the commands to one worker and the cancels of its jobs."""

    def __init__(self, store: StepStore, worker: str, on_command: OnCommand, holds: Callable[[str], bool]) -> None:
        """`holds` returns whether the worker has a job with this id."""
        self._store = store
        self._worker = worker
        self._on_command = on_command
        self._holds = holds
        self._answering: set[asyncio.Task[object]] = set()

    async def start(self) -> None:
        """Start executing commands."""
        await self._store.listen(self._store.commands, self._on_message)
        await self._store.listen(self._store.cancels, self._on_cancel)

    async def end(self) -> None:
        """Wait until the last replies are sent, then stop."""
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
            spawn(self._answering, self._answer(*found))

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
        for id in filter(self._holds, ids):
            spawn(self._answering, self._on_command(WorkerCommand(action="cancel", id=id, by=by)))

    async def _answer(self, command: WorkerCommand, channel: str) -> None:
        values = await self._on_command(command)
        text = json.dumps({"worker": self._worker, "values": None if values is None else dict(values)})
        # Another part of the session reports its loss.
        with contextlib.suppress(BrokerError):
            await self._store.publish(channel, text)
