"""A site's failed jobs: the view of their queues, their rows, and long operations on them."""

from palermo.contract.row_types import JobRow
from palermo.contract.rows import MAX_SHOWN, Listing, Row, iso_instant, job_row
from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.errors import BrokerUnavailable
from palermo.inspector.judges import FindJudge, not_found_error
from palermo.jobs.redaction import masked_row
from palermo.views.filter import JobFilter
from palermo.webui import tuning
from palermo.webui.failed.index import FailureGroup
from palermo.webui.failed.operations import operations
from palermo.webui.failed.view import FailedJobReader, FailedView, ViewState
from palermo.webui.filters import Paging
from palermo.webui.site import Refused, Site


class FailedJobs:
    """A site's failed jobs, with their view and the operations on them."""

    def __init__(self, site: Site) -> None:
        self._site = site
        operations(site)  # created first, so that a closing site closes it before this view
        self._reader = FailedJobReader(site.client, site.hidden)
        self.view = FailedView(site.inspector, self._reader)

    def wait_until_read(self) -> ViewState:
        """Wait until the view is filled, and return its state.

        After publish_timeout it raises Refused (503) with the progress of reading, or BrokerUnavailable if reading
        failed.
        """
        timeout = self._site.client.settings.publish_timeout
        state = self.view.update(timeout)
        if not state.ready:
            if state.error:
                raise BrokerUnavailable(state.error)
            seen, total = f"{state.seen:,}", f"{state.total or state.behind:,}"
            raise Refused(
                503, f"the failed jobs are still being read ({seen} of {total} so far). Try again in a few seconds."
            )
        return state

    def message(self, id: str) -> Message:
        """Return the complete message of one failed job. Raises NotFound."""
        known = self.view.message(id)
        state = self.view.state
        if known is not None and known[1]:
            return known[0]
        if known is not None or not state.ready or self._count() <= tuning.FEW:
            found = FindJudge(id)
            self._reader.read(found, stop=lambda: found.message is not None, ids=(id,))
            if found.message is not None:
                return found.message
        raise not_found_error([id])

    def group_name(self, fingerprint: str) -> str:
        """Describe a group; returns the fingerprint if the view contains none of its jobs."""
        for found in self.view.index.page(JobFilter(group=fingerprint), offset=0, limit=1, newest=True):
            message = found.message
            return f"{message.job} with {message.failure.exception_class}" if message.failure else message.job
        return fingerprint

    def page(self, filter: JobFilter, paging: Paging, *, newest: bool) -> Listing[JobRow]:
        """A page of the failed jobs that match, as the view has them."""
        found = self.view.index.page(filter, offset=paging.offset, limit=paging.limit, newest=newest)
        return Listing([self.row(each.message) for each in found], self.view.index.count(filter))

    def groups(self, filter: JobFilter, paging: Paging) -> Listing[Row]:
        """A page of the groups of the failed jobs that match, with their histories."""
        found, total = self.view.index.groups(filter, offset=paging.offset, limit=paging.limit, parts=tuning.PARTS)
        return Listing([_group_row(each) for each in found], total)

    def row(self, message: Message) -> JobRow:
        """Return the row of a job for display, with hidden values masked."""
        return masked_row(self.unmasked_row(message), self._site.hidden)

    def unmasked_row(self, message: Message) -> JobRow:
        """Return the unmasked row of a job, which must not be displayed."""
        return job_row(message, JobState.FAILED, self._site.client.serializers, max_bytes=MAX_SHOWN)

    def close(self) -> None:
        """Delete the view, which can be rebuilt."""
        self.view.close()

    def _count(self) -> int:
        return sum(self._reader.counts().values())


def _group_row(group: FailureGroup) -> Row:
    failure = group.sample.failure
    return {
        "fingerprint": group.fingerprint,
        "count": group.count,
        "job": group.sample.job or None,
        "error": failure.exception_class if failure else "",
        "message": failure.message if failure else "",
        "first_seen": iso_instant(group.first),
        "last_seen": iso_instant(group.last),
        "id": group.sample.id,
        "history": list(group.history),
    }


def failed_jobs(site: Site) -> FailedJobs:
    """Return a site's failed jobs, created on first use."""
    return site.component(FailedJobs, lambda: FailedJobs(site))
