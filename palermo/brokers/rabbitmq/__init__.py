"""RabbitMQ, by pika: the entry points `amqp` and `amqps`."""

import logging

from palermo.brokers.rabbitmq.broker import RabbitmqBroker, open_rabbitmq

__all__ = ["RabbitmqBroker", "open_rabbitmq"]

# pika logs every closed channel as a warning; what matters of it reaches the user as one of our errors.
logging.getLogger("pika").addHandler(logging.NullHandler())
