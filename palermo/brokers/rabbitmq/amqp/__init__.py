"""AMQP on pika: connections, channels, frames, publisher confirms, locks and streams."""
