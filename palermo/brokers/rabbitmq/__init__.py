"""The RabbitMQ broker, on pika: the entry points `amqp` and `amqps`."""

import logging

from palermo.brokers.rabbitmq.broker import RabbitmqBroker, open_rabbitmq

__all__ = ["RabbitmqBroker", "open_rabbitmq"]

# pika logs every step of a connection and every closed channel. The steps that matter reach users as our own errors.
# To read pika's lines anyway, set the level of the logger "pika".
if logging.getLogger("pika").level == logging.NOTSET:
    logging.getLogger("pika").setLevel(logging.CRITICAL)
