"""The engines under the adapter: a mutex between processes, probes and declarations, requests and replies."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.brokers.rabbitmq.amqp import rpc
from palermo.brokers.rabbitmq.amqp.connection import CALL_TIMEOUT, Connection, open_connection
from palermo.brokers.rabbitmq.amqp.messages import PERSISTENT_JSON
from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.brokers.rabbitmq.amqp.publisher import Publisher
from palermo.brokers.rabbitmq.amqp.rpc import Part, Responder, Rpc, Send
from palermo.contract.broker import SessionParameters
from palermo.core.topology import internal
from palermo.errors import BrokerRefused, BrokerUnavailable, NotFound
from tests.contract.tools import PATIENT
from tests.tcp_proxy import TcpProxy

#: Takes the lock and says so; holds it until it is killed.
HOLDER = """
import asyncio, sys
from palermo.brokers.rabbitmq.amqp.connection import open_connection
from palermo.brokers.rabbitmq.amqp.mutex import Mutex
from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url

async def main():
    connection = await open_connection(SessionParameters(address=parse_url(sys.argv[1]), exchange="any"), "holder")
    async with Mutex(sys.argv[2]).held(connection):
        print("held", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.fixture
def lock(exchange: str) -> str:
    return internal(exchange, "test.lock")


@asynccontextmanager
async def two(session: SessionParameters) -> AsyncIterator[tuple[Connection, Connection]]:
    first, second = await open_connection(session, "one"), await open_connection(session, "two")
    try:
        yield first, second
    finally:
        await first.close()
        await second.close()


# -- mutex


def test_one_session_at_a_time_holds_a_mutex(runner: asyncio.Runner, session: SessionParameters, lock: str) -> None:
    async def main() -> list[bool]:
        async with two(session) as (first, second):
            ours, theirs = Mutex(lock), Mutex(lock)
            async with ours.held(first) as mine, theirs.held(second, patience=0.0) as other:
                meanwhile = [mine, other, (await second.probe(lock)).locked, (await first.probe(lock)).locked]
            async with theirs.held(second, patience=0.0) as after:
                return [*meanwhile, after]

    assert runner.run(main()) == [True, False, True, False, True]


def test_one_task_of_a_session_at_a_time_holds_a_mutex(
    runner: asyncio.Runner, session: SessionParameters, lock: str
) -> None:
    async def main() -> tuple[bool, bool]:
        async with two(session) as (first, _):
            mutex = Mutex(lock)
            async with mutex.held(first) as mine, mutex.held(first, patience=0.05) as other:
                return mine, other

    assert runner.run(main()) == (True, False)


def test_tasks_that_share_a_mutex_hold_it_until_the_last_one_ends(
    runner: asyncio.Runner, session: SessionParameters, lock: str
) -> None:
    async def main() -> list[bool]:
        async with two(session) as (first, second):
            mutex, seen = Mutex(lock), []
            async with mutex.shared(first):
                async with mutex.shared(first) as both:
                    seen.append(both)
                seen.append((await second.probe(lock)).locked)
            return [*seen, (await second.probe(lock)).exists]

    assert runner.run(main()) == [True, True, False]


def test_a_mutex_is_free_when_its_holder_was_killed(
    runner: asyncio.Runner, session: SessionParameters, rabbitmq_url: str, lock: str
) -> None:
    async def main() -> bool:
        connection = await open_connection(session, "waiting")
        try:
            assert (await connection.probe(lock)).locked
            holder.kill()
            async with Mutex(lock).held(connection, patience=60.0) as ours:
                return ours
        finally:
            await connection.close()

    with subprocess.Popen([sys.executable, "-c", HOLDER, rabbitmq_url, lock], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert runner.run(main())


def test_a_session_that_gave_up_waiting_leaves_no_lock_behind(
    runner: asyncio.Runner, session: SessionParameters, lock: str
) -> None:
    async def main() -> bool:
        async with two(session) as (first, second):
            for turns in range(20):
                taking = asyncio.ensure_future(Mutex(lock).take(first))
                for _ in range(turns):
                    await asyncio.sleep(0)
                taking.cancel()
                await asyncio.wait({taking})
                if not taking.cancelled() and taking.exception() is None and (channel := taking.result()) is not None:
                    channel.raw.queue_delete(lock, callback=lambda _: None)
                    await channel.close()
            async with Mutex(lock).held(second, patience=60.0) as theirs:
                return theirs

    assert runner.run(main())


# -- probes and declarations


async def test_a_probe_says_what_there_is_and_leaves_the_connection_usable(
    session: SessionParameters, lock: str
) -> None:
    async with two(session) as (first, second):
        missing = await first.probe(lock)
        assert not missing.exists
        with pytest.raises(NotFound):
            _ = missing.messages
        async with Mutex(lock).held(second):
            locked = await first.probe(lock)
            assert (locked.exists, locked.locked) == (True, True)
            with pytest.raises(BrokerRefused):
                _ = locked.messages
        assert await first.declare(lock) is None
        found = await first.probe(lock)
        assert (found.exists, found.locked, found.messages, found.consumers) == (True, False, 0, 0)
        assert await first.delete_unused(lock)
        assert await first.purge(lock) is None


def test_a_probe_of_a_missing_queue_fails_no_other_call(
    runner: asyncio.Runner, session: SessionParameters, exchange: str, lock: str
) -> None:
    async def main() -> list[bool]:
        connection = await open_connection(session, "test")
        try:
            await connection.declare(lock)
            names = [lock, internal(exchange, "missing")] * 20
            found = await asyncio.gather(*(connection.probe(name) for name in names))
            await connection.delete(lock)
            return [one.exists for one in found]
        finally:
            await connection.close()

    assert runner.run(main()) == [True, False] * 20


async def test_a_declaration_says_how_an_existing_queue_differs(session: SessionParameters, lock: str) -> None:
    connection = await open_connection(session, "test")
    try:
        await connection.declare(lock, {"x-max-length": 5})
        difference = await connection.declare(lock, {"x-max-length": 6})
        assert difference is not None
        assert difference.argument == "x-max-length"
        assert "6" in difference.ours
        assert "5" in difference.theirs
        await connection.delete(lock)
    finally:
        await connection.close()


def test_a_session_is_lost_though_the_end_of_one_channel_settles_a_message_of_another(
    runner: asyncio.Runner, session: SessionParameters, lock: str
) -> None:
    """As when the leader gives back a tenant's job whose publish was not confirmed."""

    async def go(proxy: TcpProxy) -> tuple[list[bool], bool]:
        address = replace(session.address, hosts=(("127.0.0.1", proxy.port),))
        connection = await open_connection(replace(session, address=address), "test")
        await connection.declare(lock)
        publisher, holder = await Publisher.open(connection), await connection.channel()
        await publisher.send("", lock, PERSISTENT_JSON, b"{}")
        got = await holder.get(lock)
        assert got is not None
        could = []

        def unconfirmed(_: object) -> None:
            could.append(holder.is_open)
            if holder.is_open:
                holder.requeue(got.tag)

        proxy.stall("down")
        publisher.post("", lock, b"".join(PERSISTENT_JSON.encode()), b"{}", unconfirmed, None)
        proxy.hang_up(reset=True)
        async with asyncio.timeout(PATIENT):
            await connection.lost.wait()
        return could, holder.is_open

    with TcpProxy(*session.address.hosts[0]) as proxy:
        assert runner.run(go(proxy)) == ([False], False)


async def test_a_get_and_a_close_without_an_answer_end(
    session: SessionParameters, lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_answered(patch: pytest.MonkeyPatch) -> None:
        patch.setattr("palermo.brokers.rabbitmq.amqp.connection.CALL_TIMEOUT", 0.2)

    assert CALL_TIMEOUT > 1

    connection = await open_connection(session, "test")
    try:
        channel = await connection.channel()
        with monkeypatch.context() as patch:
            not_answered(patch)
            patch.setattr(connection.raw, "get_each", lambda *_: None)
            with pytest.raises(BrokerUnavailable, match="did not answer in time"):
                await channel.get(lock)
        other = await connection.channel()
        with monkeypatch.context() as patch:
            not_answered(patch)
            patch.setattr(other.raw, "close", lambda: None)
            with pytest.raises(BrokerUnavailable, match="did not answer in time"):
                await other.close()
    finally:
        await connection.close()


# -- requests and replies


async def responder(connection: Connection, queue: str, *, delay: float = 0.0) -> Responder:
    channel = await Mutex(queue).take(connection)
    assert channel is not None
    made = Responder(channel, queue, await Publisher.open(connection))

    async def later(values: Mapping[str, Any], send: Send) -> Mapping[str, Any]:
        await asyncio.sleep(delay)
        send(Part({"half": values["number"]}))
        return {"number": values["number"]}

    await made.start(lambda values, send: {"now": True} if "now" in values else later(values, send))
    return made


async def test_each_request_gets_its_own_reply(session: SessionParameters, lock: str) -> None:
    async with two(session) as (first, second):
        await responder(second, lock, delay=0.05)
        client = Rpc(first, lock, silence=60.0)
        replies = await asyncio.gather(*(client.ask({"number": number}) for number in range(50)))
        assert [reply["number"] for reply in replies if reply] == list(range(50))
        assert (await client.ask({"now": 1}) or {})["now"]
        parts = await rpc.ask(first, lock, {"number": 7}, silence=60.0)
        assert parts is not None
        assert [part.values for part in parts] == [{"half": 7}, {"~end": True, "number": 7}]


def test_a_slow_reply_is_waited_for_while_its_process_lives(
    runner: asyncio.Runner, session: SessionParameters, lock: str
) -> None:
    async def main(silence: float) -> Mapping[str, Any] | None:
        async with two(session) as (first, second):
            await responder(second, lock, delay=2 * silence)
            return await Rpc(first, lock, silence=silence).ask({"number": 1})

    # Where no sign of life comes none of them is answered; where the machine stands still the longest is.
    reply = runner.run(main(1.5)) or runner.run(main(5.0)) or runner.run(main(15.0))

    assert reply is not None
    assert reply["number"] == 1


def test_a_request_without_a_process_that_takes_it_or_answers_it_ends(
    runner: asyncio.Runner, session: SessionParameters, lock: str
) -> None:
    async def main() -> list[object]:
        async with two(session) as (first, second):
            client = Rpc(first, lock, silence=0.3)
            missing = [await client.ask({"number": 1}), await rpc.ask(first, lock, {"number": 1}, silence=0.3)]
            await Mutex(lock).take(second)  # there is a queue, and nobody consumes it
            return [*missing, await client.ask({"number": 1}), await rpc.ask(first, lock, {"number": 1}, silence=0.3)]

    assert runner.run(main()) == [None, None, None, None]
