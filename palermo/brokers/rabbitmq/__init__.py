"""RabbitMQ, by pika: the entry points `amqp` and `amqps`."""

from palermo.brokers.rabbitmq.broker import RabbitmqBroker, open_rabbitmq

__all__ = ["RabbitmqBroker", "open_rabbitmq"]
