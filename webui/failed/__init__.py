"""The failed jobs as the pages show them: a bounded view of the queue, and the long commands on it."""

import threading

from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable, NotFound
from palermo.inspector import Inspector
from palermo.rows import Row, arguments_of, job_row
from palermo.verdicts import FindingOne, no_failed_jobs
from palermo.webui import redact
from palermo.webui.failed.operations import Operations
from palermo.webui.failed.source import Source
from palermo.webui.failed.view import FailedView, State
from palermo.webui.site import Site

_lock = threading.Lock()

#: Jobs that lie in `failed` at most for one of them to be looked for there, where the view does not have it.
NEAR = 2_000


class Failures:
    """One site's failed jobs: what is known of them, and what is being done about them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        # Not one that gives up early: reading takes as long as there are jobs.
        self._inspector = Inspector(site.client)
        self._source = Source(site.client)
        self.view = FailedView(self._inspector, self._source)
        self.operations = Operations(self._inspector, self.view)

    def ready(self) -> State:
        """The state of the view once it can be asked. Raises BrokerUnavailable if that takes above publish_timeout."""
        patience = self._site.client.settings.publish_timeout
        state = self.view.look(patience)
        if not state.ready:
            raise BrokerUnavailable(
                state.error
                or f"the failed jobs are still being read, {state.seen:,} of {state.total:,} so far. Ask again."
            )
        return state

    def message(self, id: str) -> Message:
        """One failed job, whole. Raises NotFound."""
        known = self.view.message(id)
        state = self.view.state
        if known is not None and known[1]:
            return known[0]
        if known is not None or not state.ready or self._held() <= NEAR:
            found = FindingOne(id)
            self._source.read(found, stop=lambda: found.message is not None, id=id)
            if found.message is not None:
                return found.message
        raise no_failed_jobs([id])

    def known(self, id: str) -> Row | None:
        """The row of a failed job with what is hidden, or None if it is not there; as `message`, and as near."""
        self.view.look()
        try:
            return self.bare_row(self.message(id))
        except NotFound:
            return None

    def row(self, message: Message) -> Row:
        """A job as it may be shown."""
        return redact.shown(self.bare_row(message), self._site.hidden)

    def bare_row(self, message: Message) -> Row:
        """The same with what is hidden: to be shown to nobody."""
        return job_row(message, JobState.FAILED, self._site.client.serializers)

    def readable(self, message: Message) -> bool:
        """Whether its arguments can be read here."""
        return arguments_of(message, self._site.client.serializers) is not None

    def close(self) -> None:
        """End what is under way, and throw the view away. Nothing is lost by it."""
        self.operations.close()
        self.view.close()

    def _held(self) -> int:
        return sum(self._source.counts().values())


def failures(site: Site) -> Failures:
    """The failed jobs of a site; the same ones for as long as it lives."""
    with _lock:
        found = site.kept.get("failures")
        if found is None:
            found = site.kept["failures"] = Failures(site)
        assert isinstance(found, Failures)
        return found


def close(site: Site) -> None:
    """What a site that ends does about its failed jobs."""
    found = site.kept.pop("failures", None)
    if isinstance(found, Failures):
        found.close()
