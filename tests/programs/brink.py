"""`palermo`, whose worker stops between having a result stored and acknowledging its job: a file tells when."""

import asyncio
import os
from pathlib import Path

from palermo.brokers.rabbitmq.consuming.consumer import RabbitmqConsumer
from palermo.brokers.redis.consumer import RedisConsumer
from palermo.brokers.sqlite.consumer import SqliteConsumer
from palermo.cli import main


async def never(self, delivery, settlement):
    Path(os.environ["BRINK"]).touch()  # noqa: ASYNC240 - at once
    await asyncio.sleep(3_600)


RabbitmqConsumer.settle = RedisConsumer.settle = SqliteConsumer.settle = never

main()
