"""The loop of a part of the leader that keeps its state in a ledger."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.publishing.ledger_records import NewerFormat
from palermo.brokers.rabbitmq.seconds import AGAIN
from palermo.contract.tasks import uninterrupted, wait_for_any
from palermo.errors import PalermoError

log = logging.getLogger("palermo.rabbitmq")

#: Does the current work, and returns the seconds until the next call.
Turn = Callable[[], Coroutine[Any, Any, float]]


async def take_turns(turn: Turn, news: asyncio.Event, connection: Connection, problem: str) -> None:
    """Call `turn` repeatedly until cancelled, sooner if `news` is set. A started turn is always finished.

    Errors are logged with the text `problem`. Raises NewerFormat, and the error of a lost connection.
    """
    while True:
        news.clear()
        try:
            wait = await uninterrupted(turn())
        except NewerFormat:
            raise
        except PalermoError as error:
            if connection.error is not None:
                raise
            log.warning("%s error=%r", problem, str(error))
            wait = AGAIN
        await wait_for_any(news, timeout=wait)
