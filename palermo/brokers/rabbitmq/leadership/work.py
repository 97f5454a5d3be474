"""The work of a duty as its leader calls it, and the queue that the leader holds."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeVar

from palermo.brokers.rabbitmq.leadership.operations import Operation
from palermo.core.election import Duty
from palermo.core.topology import internal

T = TypeVar("T")


def leader_queue(exchange: str, duty: Duty) -> str:
    """The exclusive queue that the leader of a duty holds, and that requests to it are published to."""
    return internal(exchange, "leader" if duty is Duty.MAIN else f"leader.{duty}")


class Ask(Protocol):
    """Asks for an operation, and returns its reply: LeaderClient.ask."""

    def __call__(self, operation: Operation[T], /) -> Awaitable[T]: ...


class Work(ABC):
    """The work of one duty. All of it goes over the connection that holds the duty's queue.

    A leader that stands in only does what requests need: it publishes no job because of the time or a tenant's turn.
    """

    async def begin(self) -> None:  # noqa: B027 - not every duty needs it
        """Do what comes before the first request is answered."""

    @abstractmethod
    def tasks(self) -> Sequence[Awaitable[None]]:
        """What is done besides requests, until it is cancelled. Each may raise the connection's error."""

    async def close(self) -> None:  # noqa: B027 - not every duty needs it
        """Stop, once what is on its way is stored; may be cancelled. The connection is closed next."""

    def handle_now(self, operation: Operation[Any]) -> Any:
        """The reply if nothing has to be waited for, else NotImplemented. It is to be sent immediately."""
        return NotImplemented

    @abstractmethod
    async def handle(self, operation: Operation[Any]) -> Any:
        """Do the operation. Returns its reply."""
