"""The errors by which RabbitMQ closes channels: it logs each."""

import pytest
from pika import exceptions

from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.errors import PalermoError


def channel_errors(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """A list that gets each of these errors from now on."""
    found, translated = list[BaseException](), Connection.translated

    def noted(connection: Connection, error: BaseException) -> PalermoError:
        if isinstance(error, exceptions.ChannelClosedByBroker):
            found.append(error)
        return translated(connection, error)

    monkeypatch.setattr(Connection, "translated", noted)
    return found
