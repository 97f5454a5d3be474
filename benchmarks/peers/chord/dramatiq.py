"""Dramatiq's group with a completion callback, and results in Redis. The program adds the results."""

import os

import dramatiq
import redis
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend as Barriers
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

broker = RabbitmqBroker(url=os.environ["AMQP_URL"], confirm_delivery=True)
client = redis.Redis.from_url(os.environ["REDIS_URL"])
broker.add_middleware(Results(backend=RedisBackend(client=client)))
broker.add_middleware(GroupCallbacks(Barriers(client=client)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def one(number: int) -> int:
    return number


@dramatiq.actor(store_results=True)
def ended() -> bool:
    return True


def run(count: int, within: float) -> int:
    group = dramatiq.group([one.message(number) for number in range(count)])
    callback = ended.message()
    group.add_completion_callback(callback)
    group.run()
    callback.get_result(block=True, timeout=int(1e3 * within))
    return sum(group.get_results(block=True, timeout=int(1e3 * within)))
