"""Somebody deletes the exchange through which workers hear of pauses and are asked what they run."""

import pytest

from palermo.brokers.rabbitmq.broker import open_rabbitmq
from palermo.brokers.rabbitmq.cluster import worker_control
from palermo.contract.broker import SessionParameters
from palermo.core.topology import internal
from tests.contract.tools import Report, consume, until


@pytest.mark.parametrize("anew", [False, True], ids=["gone", "made-anew"])
async def test_workers_answer_and_follow_the_first_pause_although_their_exchange_was_deleted(
    session: SessionParameters, anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_control, "_BIND_EVERY", 0.2)
    broker, onlooker = await open_rabbitmq(session), await open_rabbitmq(session)
    workers = [await consume(broker, "mail")]
    async with onlooker._connection.spare_channel() as channel:
        await channel.call(channel.raw.exchange_delete, internal(session.exchange, "control"))
    await onlooker.pause("mail")
    if anew:
        workers.append(await consume(broker, "mail", report=Report("mail", pid=2)))

    async def seen() -> tuple[list[bool], list[set[str]]]:
        paused = [worker._consumer._steering._pauses.state.queues for worker in workers]  # type: ignore[attr-defined]
        return [one.answers for one in await onlooker.workers()], paused

    await until(seen, ([True] * len(workers), [{"mail"}] * len(workers)))
    for worker in workers:
        await worker.close()
    await broker.close()
    await onlooker.close()
