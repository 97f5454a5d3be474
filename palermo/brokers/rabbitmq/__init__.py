"""RabbitMQ, by pika: the entry points `amqp` and `amqps`."""

import logging

from palermo.brokers.rabbitmq.broker import RabbitmqBroker, open_rabbitmq

__all__ = ["RabbitmqBroker", "open_rabbitmq"]

# pika tells every step of a connection and every closed channel; what matters of it reaches people as one of our
# errors. Who wants to read it all the same sets the level of the logger "pika".
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL)
