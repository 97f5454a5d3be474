"""`palermo`, whose worker is killed between having a result stored and acknowledging its job: a file tells when."""

import os
import signal
from pathlib import Path

from palermo.brokers.rabbitmq.consuming.consumer import RabbitmqConsumer
from palermo.brokers.redis.consumer import RedisConsumer
from palermo.brokers.sqlite.consumer import SqliteConsumer
from palermo.cli import main


async def never(self, delivery, settlement):
    Path(os.environ["BRINK"]).touch()  # noqa: ASYNC240 - at once
    os.kill(os.getpid(), signal.SIGKILL)


RabbitmqConsumer.settle = RedisConsumer.settle = SqliteConsumer.settle = never

main()
