"""Another process with the same file: `python -m tests.contract.sqlite_peer URL ROLE [COUNT]`.

It prints a line for each thing that it has done, so that a test can follow it.
"""

import asyncio
import os
import signal
import sys
from subprocess import PIPE, Popen

from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.core.address import parse_url
from tests.contract.tools import PATIENT
from tests.contract.workers import Report, consume


def start(url: str, role: str, count: int = 0) -> "Popen[str]":
    return Popen([sys.executable, "-m", __name__, url, role, str(count)], stdout=PIPE, text=True)


def line(peer: "Popen[str]") -> str:
    assert peer.stdout is not None
    return peer.stdout.readline().strip()


def say(text: object) -> None:
    print(text, flush=True)


async def hold(broker: Broker, count: int) -> None:
    """Take so many jobs and never settle them."""
    consumer = await consume(broker, slots=count, report=Report("jobs", pid=99))
    for slot in range(1, count + 1):
        say((await consumer.receive(slot)).message.id)
    await asyncio.Event().wait()


async def hold_and_fork(broker: Broker, count: int) -> None:
    """Take a job and fork a child that outlives us."""
    consumer = await consume(broker)
    say((await consumer.receive(1)).message.id)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    say(child)
    await asyncio.Event().wait()


ROLES = {role.__name__: role for role in (hold, hold_and_fork)}


async def main(url: str, role: str, count: str) -> None:
    broker = await open_broker(SessionParameters(address=parse_url(url), timeout=PATIENT))
    await ROLES[role](broker, int(count))
    await broker.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
