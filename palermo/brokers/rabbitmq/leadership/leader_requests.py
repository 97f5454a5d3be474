"""One session's requests to the leader, and whether there is one.

The leader holds the exclusive queue `~leader` as its lock (mutex.py), and consumes it: a message to it is a request to
the leader. It may be lost with a leader that dies. So after a short silence the caller is told that nobody answered,
and must be able to ask the same again.
"""

from typing import Any

from palermo.brokers.rabbitmq.amqp import rpc
from palermo.brokers.rabbitmq.amqp.connection import Connection
from palermo.brokers.rabbitmq.amqp.rpc import Part, Rpc
from palermo.brokers.rabbitmq.leadership.operations import BriefOperation, Operation
from palermo.core.topology import internal

#: Seconds without a reply or a sign of life after which a request counts as lost: a brief operation, which is asked for
#: again at once, and any other.
_SILENCE, _LONG_SILENCE = 2.5, 5.0


def leader_queue(exchange: str) -> str:
    """The exclusive queue that the leader holds, and that requests to the leader are published to."""
    return internal(exchange, "leader")


class LeaderRequests:
    """The requests of one session to the leader."""

    def __init__(self, connection: Connection, exchange: str) -> None:
        self._connection = connection
        self._queue = leader_queue(exchange)
        self._rpc = Rpc(connection, self._queue, silence=_SILENCE)

    async def is_vacant(self) -> bool:
        """Whether there is no leader."""
        return not (await self._connection.probe(self._queue)).exists

    async def tell(self, operation: Operation[None]) -> None:
        """Send an operation without waiting for its reply; it may be lost. Raises the session's error."""
        await self._rpc.tell(operation.to_plain())

    async def ask(self, operation: Operation[Any]) -> list[Part] | None:
        """The leader's reply, its last part with values; None if there is no leader, or it was silent: then ask again.

        Raises the session's error if the session is lost.
        """
        request = operation.to_plain()
        if not isinstance(operation, BriefOperation):
            return await rpc.ask(self._connection, self._queue, request, silence=_LONG_SILENCE)
        values = await self._rpc.ask(request)
        return None if values is None else [Part(values)]
