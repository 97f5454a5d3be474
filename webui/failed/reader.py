"""The reader of failed jobs: it reads their queues, or on RabbitMQ the log of the failed jobs in quorum queues."""

from collections.abc import Callable, Sequence

from palermo.client.client import Client
from palermo.client.failed_queues import failed_queues, read_failed
from palermo.contract.sweep import SweepProgress
from palermo.core.message import Message
from palermo.inspector.judges import VisitJudge, stoppable
from palermo.inspector.masking import masked_preview


class FailedJobReader:
    """Reads the queues of failed jobs of one broker."""

    def __init__(self, client: Client, hidden: Sequence[str]) -> None:
        """`hidden` holds patterns for names whose values are shown to nobody."""
        self._client = client
        self._hidden = hidden

    def counts(self) -> dict[str, int]:
        """How many messages each queue of failed jobs holds. Two copies of one id count as two."""
        return self._client.run(failed_queues, again=True)

    def search_text(self, message: Message) -> str | None:
        """The preview of the message's arguments, without hidden values."""
        return masked_preview(message, self._client.serializers, self._hidden)

    def read(
        self,
        see: Callable[[Message], object],
        *,
        progress: Callable[[SweepProgress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        id: str = "",
    ) -> SweepProgress:
        """Call `see` with every failed job, oldest first, until `stop` returns True.

        Queues that reading would harm are left out. Reading takes as long as there are jobs. With an `id` other jobs
        may be left out. `see` is called on the client's own thread and must be quick.
        """
        judge = stoppable(stop, VisitJudge(see))
        return self._client.run(lambda broker: read_failed(broker, judge, progress, id=id))
