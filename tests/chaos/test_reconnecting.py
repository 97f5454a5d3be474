"""Many sessions, each lost and followed by another, leave nothing behind: no memory, no descriptor, no thread.

A thousand of them with `PALERMO_ENDURANCE=1`. Lines that are cut during a login are no wrong password.
"""

import asyncio
import gc
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.contract.broker import Broker, Consumer, SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.queue_selection import QueueSelection
from palermo.errors import BrokerUnavailable
from palermo.settings.settings import Settings
from palermo.worker.options import WorkerOptions
from palermo.worker.parent import broker_session as sessions
from palermo.worker.parent.broker_session import BrokerSession, BrokerSessions
from palermo.worker.parent.session_duties import SessionDuties
from palermo.worker.registered import Registered
from tests.contract.tools import until
from tests.contract.workers import Report
from tests.helpers import eventually
from tests.scale import scaled
from tests.tcp_proxy import TcpProxy

TIMES = scaled(120, 1_000)

#: Those of either kind of worker, which together make as many.
SESSIONS = TIMES // 2

#: Sessions after which all that is made once has been made.
WARM_UP = TIMES // 5

#: Bytes of resident memory that these may leave behind, by the fragments of the allocator: 4 kB each of a thousand.
SLACK = scaled(2_000_000, 4_000_000)


@dataclass(frozen=True)
class Held:
    """What this process holds."""

    memory: int
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> "Held":
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        descriptors = len(os.listdir("/proc/self/fd"))
        return cls(pages * os.sysconf("SC_PAGE_SIZE"), descriptors, threading.active_count())

    def beyond(self, before: "Held") -> dict[str, int]:
        """What is more than before. Two connections may be on their way out, each with two ends at the proxy."""
        more = {"memory": self.memory - before.memory - SLACK, "threads": self.threads - before.threads}
        more["descriptors"] = self.descriptors - before.descriptors - 8
        return {what: count for what, count in more.items() if count > 0}


@pytest.mark.parametrize("queues", ["jobs", "jobs,mail"], ids=["push", "poll"])
def test_a_worker_that_reconnects_often_holds_no_more_than_before(
    rabbitmq_url: str, exchange: str, proxy: TcpProxy, queues: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every session was a good one, so that none waits for the next.
    monkeypatch.setattr(sessions, "_GOOD_AFTER", 0.0)
    selection = QueueSelection.parse(queues)

    async def consume(broker: Broker) -> Consumer:
        return await broker.consume(selection, slots=2, tag="w", report=Report(queues, slots=2))

    async def go() -> None:
        opened: asyncio.Queue[BrokerSession] = asyncio.Queue()
        # It stands for leader in each session, without the pause of a worker that runs jobs first.
        registered = Registered(jobs=(), queues=(), hooks=frozenset())
        duties = SessionDuties(WorkerOptions(settings=Settings(), modules=("shop",), burst=True), registered)

        def on_open(session: BrokerSession) -> None:
            duties.begin(session.broker)
            opened.put_nowait(session)

        sessions = BrokerSessions(
            SessionParameters(address=parse_url(proxy.url(rabbitmq_url)), exchange=exchange, name="worker"),
            give_up=False,
            consume=consume,
            opened=on_open,
            lost=lambda: None,
            ending=lambda _: duties.end(),
        )
        holding = asyncio.ensure_future(sessions.keep_open())
        for number in range(SESSIONS):
            session = await opened.get()
            receiving = [asyncio.ensure_future(session.consumer.receive(slot)) for slot in (1, 2)]
            await asyncio.sleep(0)
            proxy.hang_up(reset=number % 2 == 0)
            await asyncio.wait(receiving)
            assert all(task.exception() is not None for task in receiving)
            if number == WARM_UP:
                before, tasks = Held.now(), len(asyncio.all_tasks())
        # What is on its way out takes its time on a busy machine.
        await until(lambda: len(asyncio.all_tasks()) <= tasks + 4, True)
        await until(lambda: Held.now().beyond(before), {})
        holding.cancel()
        await asyncio.wait([holding])

    asyncio.run(go())


def test_a_program_that_reconnects_often_holds_no_more(rabbitmq_url: str, exchange: str, proxy: TcpProxy) -> None:
    with Client(Settings(url=proxy.url(rabbitmq_url), exchange=exchange, publish_timeout=60.0)) as client:
        for number in range(TIMES):
            client.enqueue("shop.note", (f"{number}",), {})
            proxy.hang_up(reset=number % 2 == 0)
            if number == WARM_UP:
                before = Held.now()

        eventually(lambda: not Held.now().beyond(before))

    assert proxy.accepted >= TIMES


def complaint(session: SessionParameters) -> str:
    """Why the broker is unavailable; "" if it is not. Raises every other error."""

    async def log_in() -> None:
        await (await open_broker(session)).close()

    try:
        asyncio.run(log_in())
    except BrokerUnavailable as error:
        return str(error)
    return ""


@pytest.mark.parametrize("reset", [False, True], ids=["farewell", "reset"])
def test_a_line_cut_in_the_login_is_no_wrong_password(session: SessionParameters, proxy: TcpProxy, reset: bool) -> None:
    session = replace(session, address=replace(session.address, hosts=(("127.0.0.1", proxy.port),)))
    assert complaint(session) == ""
    # How many bytes RabbitMQ says until a session is open; a few of them follow the login.
    login_bytes, proxy.accepted = proxy.said, 0
    # Within the head of a frame, within Start, and around Tune and OpenOk, with which the login ends.
    proxy.limits = [0, 1, 6, 7, 8, 60, *range(login_bytes // 2, login_bytes, 23)]
    proxy.resets = reset

    for cut in proxy.limits:
        said = complaint(session)
        assert "password" not in said, cut
        # The last bytes answer the farewell, when the session was open already.
        assert said or cut > login_bytes // 2, cut

    assert proxy.accepted >= len(proxy.limits)
