"""The gain of a leader for each duty: keys, delayed jobs and jobs of tenants at once, with one worker and with several.

    python -m benchmarks.duties                with one leader for both, and with one for each
    python -m benchmarks.duties --leaders 1    with one alone
    python -m benchmarks.duties idle           what leaders and sessions that stand by cost while nothing happens

Leaders, and those who enqueue, take and count, are processes of their own. All kinds of jobs begin at the same instant;
the processor time is that of the leaders.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable

from benchmarks.ground import Ground, ground
from benchmarks.processes import cpu_seconds
from palermo.brokers.rabbitmq.broker import RabbitmqBroker
from palermo.contract.broker import Broker, SessionParameters, open_broker
from palermo.contract.worker_info import WorkerInfo
from palermo.core.address import parse_url
from palermo.core.lifecycle import Ack
from palermo.core.message import Message
from palermo.core.queue_selection import QueueSelection
from palermo.core.unique_keys import KeyRequest, Mode, UniqueLock, with_lock

#: Seconds of one round, until it begins, and that idle sessions are watched.
_ROUND, _AHEAD, _IDLE = 10.0, 20.0, 20.0

#: Jobs of each kind that are there when a round begins, calls that wait at once, and the tenants.
_JOBS, _AT_ONCE, _TENANTS, _SLOTS = 20_000, 30, 10, 8


def _message(queue: str, *, tenant: str = "", run_at: float | None = None) -> Message:
    return Message(id=str(uuid.uuid4()), queue=queue, job="bench.nothing", body=b"[1]", tenant=tenant, run_at=run_at)


async def _wait(begins: float) -> None:
    if time.time() > begins:
        raise SystemExit("this machine is too busy: a round should have begun before all jobs were there.")
    await asyncio.sleep(begins - time.time())


async def _lead(broker: Broker) -> None:
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await broker.run_scheduler()


async def _keys(broker: Broker, begins: float) -> float:
    done = 0

    async def enqueue() -> None:
        nonlocal done
        while time.time() < begins + _ROUND:
            key = str(uuid.uuid4())
            job = with_lock(_message("keyed"), UniqueLock(key=key, mode=Mode.DONE))
            await broker.keys.enqueue([KeyRequest(key=key, message=job, call=key)])
            done += 1

    await _wait(begins)
    await asyncio.gather(*(enqueue() for _ in range(_AT_ONCE)))
    return done / _ROUND


async def _time(broker: Broker, begins: float) -> float:
    await broker.publish_many(_message("late", run_at=begins) for _ in range(_JOBS))
    await _wait(begins)
    assert isinstance(broker, RabbitmqBroker)
    there = 0
    while there < _JOBS and time.time() < begins + _ROUND:
        await asyncio.sleep(0.05)
        counted = await broker._declarer.count("late")
        there = 0 if counted is None else counted[0]
    return there / (time.time() - begins)


async def _tenants(broker: Broker, begins: float) -> float:
    await broker.publish_many(_message("dealt", tenant=f"t{number % _TENANTS}") for number in range(_JOBS))
    info = WorkerInfo(
        id="pid:1@bench", host="bench", pid=1, queues=("dealt",), slots=_SLOTS, state="idle", started_at=time.time()
    )
    await _wait(begins)
    consumer = await broker.consume(QueueSelection(("dealt",)), slots=_SLOTS, tag=info.id, report=lambda: info)
    done = 0

    async def serve(slot: int) -> None:
        nonlocal done
        while True:
            await consumer.settle(await consumer.receive(slot), Ack())
            done += 1

    serving = [asyncio.ensure_future(serve(slot)) for slot in range(1, _SLOTS + 1)]
    await asyncio.wait(serving, timeout=begins + _ROUND - time.time())
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)
    return done / _ROUND


_LOADS: dict[str, Callable[[Broker, float], Awaitable[float]]] = {"keys": _keys, "time": _time, "tenants": _tenants}


async def _child(url: str, exchange: str, what: str, begins: float) -> None:
    broker = await open_broker(SessionParameters(address=parse_url(url), exchange=exchange, timeout=60))
    if what == "lead":
        await _lead(broker)
    else:
        print(await _LOADS[what](broker, begins), flush=True)
        os._exit(0)


def _start(found: Ground, what: str, begins: float = 0.0) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "benchmarks.duties", "--child", what, "--exchange", found.exchange]
    return subprocess.Popen(
        [*command, "--url", found.url, "--begins", str(begins)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _leaders(found: Ground, count: int) -> "list[subprocess.Popen[str]]":
    """Sessions that are all ready to lead."""
    leaders = [_start(found, "lead") for _ in range(count)]
    for leader in leaders:
        assert leader.stdout is not None
        leader.stdout.readline()
    for leader in leaders:
        assert leader.stdin is not None
        leader.stdin.write("\n")
        leader.stdin.flush()
    time.sleep(3.0)
    return leaders


def _memory(pid: int) -> float:
    with open(f"/proc/{pid}/status") as status:
        return int(status.read().split("VmRSS:")[1].split()[0]) / 1_024


def _round(found: Ground, count: int) -> None:
    leaders = _leaders(found, count)
    began = {leader.pid: cpu_seconds([leader.pid]) for leader in leaders}
    begins = time.time() + _AHEAD
    loads = {what: _start(found, what, begins) for what in _LOADS}
    rates = {what: float(load.communicate()[0]) for what, load in loads.items()}
    shares = sorted(((cpu_seconds([leader.pid]) - began[leader.pid]) for leader in leaders), reverse=True)
    told = ", ".join(f"{what} {rate:,.0f}/s" for what, rate in rates.items())
    print(f"{count} leaders: {told}; processor time {', '.join(f'{share:.1f}' for share in shares)} s", flush=True)
    for leader in leaders:
        leader.kill()
        leader.wait()


def _idle(found: Ground, count: int) -> None:
    leaders = _leaders(found, count)
    node = [] if found.node is None else [found.node.pid]
    before = [cpu_seconds([leader.pid]) for leader in leaders], cpu_seconds(node)
    time.sleep(_IDLE)
    shares = [(cpu_seconds([one.pid]) - was) / _IDLE for one, was in zip(leaders, before[0], strict=True)]
    server = f", the server {(cpu_seconds(node) - before[1]) / _IDLE:.2%}" if node else ""
    each = ", ".join(f"{share:.2%} {_memory(one.pid):.1f} MB" for one, share in zip(leaders, shares, strict=True))
    print(f"{count} sessions: {each}{server}", flush=True)
    for leader in leaders:
        leader.kill()
        leader.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("idle",))
    parser.add_argument("--url")
    parser.add_argument("--leaders", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--child")
    parser.add_argument("--exchange", default="")
    parser.add_argument("--begins", type=float, default=0.0)
    given = parser.parse_args()
    if given.child:
        asyncio.run(_child(given.url, given.exchange, given.child, given.begins))
        raise SystemExit
    for _ in range(given.rounds):
        for number in given.leaders:
            with ground(given.url) as place:
                (_idle if given.what else _round)(place, number)
