"""Where failed jobs are read from: their queue, or on RabbitMQ the log of those in quorum queues."""

from collections.abc import Callable

from palermo.broker import Swept
from palermo.client import Client
from palermo.core.message import Message
from palermo.failures import failed_queues, read_failed
from palermo.verdicts import Seeing, interrupted_by


class Source:
    """The queues of failed jobs of one broker."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def counts(self) -> dict[str, int]:
        """How many messages each of them holds; two copies of one id are two."""
        return self._client.run(failed_queues, again=True)

    def read(
        self,
        see: Callable[[Message], object],
        *,
        progress: Callable[[Swept], None] | None = None,
        stop: Callable[[], bool] | None = None,
        id: str = "",
    ) -> Swept:
        """Show every failed job to `see`, oldest first, until `stop` says so, but for queues that looking would harm.

        Takes as long as there are jobs; with an `id` others may be left out. `see` is called on the client's own
        thread and must be quick.
        """
        judge = interrupted_by(stop, Seeing(see))
        return self._client.run(lambda broker: read_failed(broker, judge, progress, id=id))
