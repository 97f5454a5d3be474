"""Streams that sessions share, when several sessions begin with them in one moment."""

import asyncio

from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.message import Message
from tests.contract.tools import PATIENT
from tests.rabbitmq_tidy import delete_all

_AT_ONCE = 6
_ROUNDS = 4


def test_no_session_is_lost_when_several_are_the_first_of_an_exchange(rabbitmq_url: str, exchange: str) -> None:
    async def enqueue(session: SessionParameters, queue: str) -> list[str]:
        broker = await open_broker(session)
        try:
            await broker.publish(Message(id=queue, queue=queue, job="shop.send", body=b"[]"))
            return [info.name for info in await broker.queues()]
        finally:
            await broker.close()

    async def begin(number: int) -> list[list[str]]:
        session = SessionParameters(address=parse_url(rabbitmq_url), exchange=f"{exchange}-{number}", timeout=PATIENT)
        async with asyncio.timeout(60):
            return await asyncio.gather(*(enqueue(session, f"q{each}") for each in range(_AT_ONCE)))

    for number in range(_ROUNDS):
        try:
            found = asyncio.run(begin(number))
        finally:
            delete_all(rabbitmq_url, f"{exchange}-{number}")
        assert [f"q{each}" in found[each] for each in range(_AT_ONCE)] == [True] * _AT_ONCE
