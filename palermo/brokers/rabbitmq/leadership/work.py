"""The interface between a leader and the work of its duty, and the queue that the leader holds."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeVar

from palermo.brokers.rabbitmq.leadership.operations import Operation
from palermo.core.election import Duty
from palermo.core.topology import internal

T = TypeVar("T")


def leader_queue(exchange: str, duty: Duty) -> str:
    """The exclusive queue that the leader of a duty holds. Requests are published to it."""
    return internal(exchange, "leader" if duty is Duty.MAIN else f"leader.{duty}")


class Ask(Protocol):
    """Sends an operation to the leader, and returns its reply: LeaderClient.ask."""

    def __call__(self, operation: Operation[T], /) -> Awaitable[T]: ...


class Work(ABC):
    """The work of one duty. All of it uses the connection that holds the duty's queue.

    A stand-in leader only answers requests: it publishes no due jobs, and gives tenants no turns.
    """

    async def begin(self) -> None:  # noqa: B027 - not every duty needs it
        """Do the work that must precede the first reply."""

    @abstractmethod
    def tasks(self) -> Sequence[Awaitable[None]]:
        """The continuous work, which runs until cancelled. Each task may raise the connection's error."""

    async def close(self) -> None:  # noqa: B027 - not every duty needs it
        """Stop, once pending work is stored. May be cancelled. The connection is closed afterwards."""

    def handle_now(self, operation: Operation[Any]) -> Any:
        """The reply if it needs no waiting, otherwise NotImplemented. The caller sends it immediately."""
        return NotImplemented

    @abstractmethod
    async def handle(self, operation: Operation[Any]) -> Any:
        """Execute the operation. Returns its reply."""
