"""Lives of jobs on Redis, each in a process that dies before one of its commands; the next before the one after that.

`python -m tests.chaos.redis_life URL` prints, for each life, its exchange, and the jobs that must be there: they were
confirmed, and nobody began to settle them. The last life meets no death.
"""

import asyncio
import itertools
import os
import signal
import sys
import time
from typing import Any

from msgspec.structs import replace

from palermo.brokers.redis.connection import Connection
from palermo.contract.broker import SessionParameters, open_broker
from palermo.contract.sweep import Move
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack, Fail, Reschedule, fail, requeue
from palermo.core.unique_keys import KeyRequest, Mode, UniqueLock, with_lock
from tests.contract.tools import FAILURE, PATIENT, message
from tests.contract.workers import Worker, consume, take


async def live(session: SessionParameters, notes: int) -> None:
    """Jobs with a key, of tenants and for later: enqueued, run, failed, tried again and requeued."""

    def note(sign: str, *ids: str) -> None:
        os.write(notes, "".join(f"{sign}{id} " for id in ids).encode())

    async def ends(worker: Worker) -> Any:
        delivery = await take(worker)
        note("-", delivery.message.id)
        return await worker.admit(delivery)

    program, other = await open_broker(session), await open_broker(session)
    keyed = with_lock(message("keyed"), UniqueLock(key="key", mode=Mode.DONE, linger=0.0, seconds=0.0))
    await program.keys.enqueue([KeyRequest(key="key", message=keyed, call="call")])
    note("+", "keyed")
    await program.publish(message("later", run_at=time.time() + 3_600))
    note("+", "later")
    await program.publish_many([message(id, tenant=id[0]) for id in ("a1", "a2", "b1")])
    note("+", "a1", "a2", "b1")
    worker = await consume(other)
    for _ in range(4):
        delivery = await ends(worker)
        match delivery.message.id:
            case "a1":
                await worker.settle(delivery, Fail(fail(delivery.message, FAILURE, worker="pid:1@h")))
            case "a2":
                again = replace(delivery.message, retries=1, run_at=time.time() + 3_600)
                await worker.settle(delivery, Reschedule(again))
            case _:
                await worker.settle(delivery, Ack())
    await worker.close()
    note("+", "a1", "a2")
    await program.sweep("failed", lambda job: Move(requeue(job)))
    await program.close()
    await other.close()


def main(url: str) -> None:
    begin = Connection.begin
    for number in itertools.count():
        session = SessionParameters(address=parse_url(url), exchange=f"life-{number}", timeout=PATIENT)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            left = number

            def counted(connection: Connection, *command: Any) -> "asyncio.Future[Any]":
                nonlocal left
                if command[0] != "SCRIPT":
                    left -= 1
                    if left < 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                return begin(connection, *command)

            Connection.begin = counted  # type: ignore[method-assign]
            asyncio.run(live(session, writing))
            os._exit(0)
        os.close(writing)
        with open(reading) as notes:
            found = notes.read().split()
        _, status = os.waitpid(child, 0)
        there = {note[1:] for at, note in enumerate(found) if note[0] == "+" and f"-{note[1:]}" not in found[at:]}
        print(session.exchange, *sorted(there), flush=True)
        if status != signal.SIGKILL:
            sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1])
