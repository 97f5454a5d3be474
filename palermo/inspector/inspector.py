"""The inspector, a library that reads and changes queues, jobs and workers.

It has an attribute for each kind of object: `inspector.failed.requeue(id)`, `inspector.queues.pause("mail")`. The
command line and the web pages use nothing else. Rows are defined in palermo.contract.rows. Listing jobs neither takes
nor loses any, and doesn't change their order. Methods that take jobs judge them in one sweep
(palermo.inspector.judges), with bounded memory.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from palermo.client.actor import Actor
from palermo.contract.serialization import MAX_DECOMPRESSED
from palermo.contract.trouble import Trouble
from palermo.inspector.context import Context
from palermo.inspector.events import Events
from palermo.inspector.failed import FailedJobs
from palermo.inspector.history import History
from palermo.inspector.jobs import Jobs
from palermo.inspector.keys import Keys
from palermo.inspector.queues import Queues
from palermo.inspector.rates import Snapshot
from palermo.inspector.recurring import RecurringJobs
from palermo.inspector.scheduled import ScheduledJobs
from palermo.inspector.tenants import Tenants
from palermo.inspector.workers import Workers
from palermo.inspector.workflows import Workflows

if TYPE_CHECKING:
    from palermo.client.client import Client


class Inspector(Context):
    """Reads and changes one broker through a client's session. Thread-safe."""

    def __init__(
        self,
        client: "Client",
        actor: Actor | None = None,
        *,
        hidden: Sequence[str] | None = None,
        max_shown_bytes: int = MAX_DECOMPRESSED,
        within: float | None = None,
    ) -> None:
        """See Context."""
        super().__init__(client, actor, hidden=hidden, max_shown_bytes=max_shown_bytes, within=within)
        self.jobs = Jobs.of(self)
        self.failed = FailedJobs.of(self)
        self.scheduled = ScheduledJobs.of(self)
        self.recurring = RecurringJobs.of(self)
        self.queues = Queues.of(self)
        self.workers = Workers.of(self)
        self.tenants = Tenants.of(self)
        self.keys = Keys.of(self)
        self.events = Events.of(self)
        self.history = History.of(self)
        self.workflows = Workflows.of(self)

    def on_behalf_of(self, actor: Actor) -> "Inspector":
        """Return the same inspector for another actor."""
        return Inspector(
            self._client,
            actor,
            hidden=self._hidden,
            max_shown_bytes=self._max_shown_bytes,
            within=self._within,
        )

    def snapshot(self) -> Snapshot:
        """Return the queues, the workers and whether all queues are paused, with one request to the broker."""
        return self._snapshot()

    def trouble(self) -> Trouble | None:
        """Return why the broker stores nothing at present, or why this user can't ask workers; None if neither applies.

        Raises BrokerUnavailable if it doesn't answer.
        """
        return self._ask(lambda broker: broker.find_trouble(), again=True)
