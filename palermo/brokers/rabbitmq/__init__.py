"""The RabbitMQ broker, built on pika: the entry points `amqp` and `amqps`."""

import logging

from palermo.brokers.rabbitmq.broker import RabbitmqBroker, open_rabbitmq

__all__ = ["RabbitmqBroker", "open_rabbitmq"]

# pika logs every step of a connection and every closed channel. Users get the relevant ones as our own errors. To see
# pika's log lines anyway, set the level of the logger "pika".
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL)
