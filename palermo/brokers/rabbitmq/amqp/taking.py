"""Takes several messages of one queue at once, by a subscription that ends with the last of them.

Because: a quorum queue writes each basic.get to disk before it answers, and gives 380 messages a second in that way;
to a subscription 3,850 (RabbitMQ 3.10.8; classic queues 4,700 and 14,400).
"""

import asyncio
import time

from palermo.brokers.rabbitmq.amqp.connection import Channel
from palermo.brokers.rabbitmq.amqp.messages import Got
from palermo.errors import BrokerUnavailable

#: Seconds without a delivery after which the queue is asked whether anything is left.
_QUIET = 0.05

#: Seconds for which a quorum queue that does not answer is asked again.
_SILENT = 20.0


async def take(
    channel: Channel, queue: str, count: int, *, cancel: bool = True, within: float | None = None
) -> list[Got]:
    """The next `count` messages of the queue, unacknowledged; fewer if it runs empty.

    With `within` also fewer if none comes for so many seconds, as other consumers get them.
    Without `cancel` messages go on coming to the channel: none of them may be settled, and it must be closed soon.
    """
    taken: list[Got] = []
    news = asyncio.Event()

    def on_message(got: Got) -> None:
        taken.append(got)
        if len(taken) >= count:
            news.set()

    channel.on_close(news.set)
    await channel.prefetch(min(count, 65_535))
    tag = await channel.consume(queue, on_message)
    while len(taken) < count:
        seen = len(taken)
        try:
            async with asyncio.timeout(within or _QUIET):
                await news.wait()
        except TimeoutError:
            if len(taken) == seen and (within or not await waits(channel, queue)) and len(taken) == seen:
                break
        if channel.error is not None:
            raise channel.error
    if not cancel:
        return taken
    # As a rule nothing is on its way now: the prefetch is used up, or the queue is empty. Pika rejects deliveries that
    # come after a cancel, and a quorum queue counts a reject as a failed delivery.
    await channel.call(channel.raw.basic_cancel, tag)
    return taken


async def waits(channel: Channel, queue: str) -> int:
    """How many messages wait in a queue from which the channel consumes. Raises BrokerUnavailable if it is silent.

    Asks twice: the second answer comes after all deliveries under way at the first. Of a quorum queue that does not
    answer within 250 ms, RabbitMQ says that it has no messages and no consumers (rabbit_quorum_queue:stat): one is
    ours, so that is no answer.
    """
    deadline = time.monotonic() + _SILENT
    while channel.raw.consumer_tags:  # else the queue was deleted
        await channel.probe(queue)
        probe = await channel.probe(queue)
        if probe.consumers:
            return probe.messages
        if time.monotonic() > deadline:
            raise BrokerUnavailable(f"queue {queue!r} did not answer for {_SILENT:g} s: most of its nodes may be away.")
        await asyncio.sleep(_QUIET)
    return 0
