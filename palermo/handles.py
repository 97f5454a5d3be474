"""A job that was enqueued, in the hands of whoever wants to know what becomes of it.

What asks the broker is in palermo/results.py, which is imported when it is first needed: a module that only
enqueues jobs does not pay for it.
"""

from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from palermo.core.values import dataclass

if TYPE_CHECKING:
    from palermo.client import Client
    from palermo.status import JobStatus


@dataclass(frozen=True, slots=True)
class Job:
    """A job that was enqueued. False in a condition if this call stored nothing.

    That is so if a before_enqueue hook kept it from being, or another job has its key (docs/unique.md).

    `palermo.job_by_id(id)` gives one for any job; its queue and name are "" then, since nobody was asked.
    """

    id: str
    queue: str
    #: Its wire name.
    job: str
    enqueued: bool = True
    #: Where another job was that has the key which this call wanted, and whose handle this is: "waiting", "running" or,
    #: where the key stays closed after its end, "ended". "" for a job of the call's own.
    duplicate: str = ""
    #: Unix seconds; None where that is not known here.
    created_at: int | None = field(default=None, repr=False, compare=False)
    #: Whether what it returns is kept; None where that is not known here.
    keep_result: bool | None = field(default=None, repr=False, compare=False)
    _client: "Client | None" = field(default=None, repr=False, compare=False)

    def __bool__(self) -> bool:
        return self.enqueued

    def status(self) -> "JobStatus":
        """What has become of it so far: a state in one word, with what else is known. See palermo.status.JobStatus.

        Raises BrokerUnavailable, BrokerRefused.
        """
        from palermo import results

        return results.status(self._owner(), self)

    def result(self, timeout: float | None = None) -> Any:
        """What it returned, as soon as it has; waits at most so many seconds, or as long as it takes.

        Raises ResultTimeout; JobFailed if it failed, was discarded or cancelled; ResultNotKept for a job without
        `keep_result` and for one that the journal has forgotten; ResultRefused where what it returned is too large or
        cannot be serialized; JournalOff; NotFound for an id that nothing is known of; and BrokerRefused.
        """
        from palermo import results

        return results.result(self._owner(), self, timeout)

    def wait(self, timeout: float | None = None) -> "JobStatus":
        """How it ended, as soon as it has, whether it keeps its result or not.

        Raises ResultTimeout, JournalOff, NotFound, BrokerRefused.
        """
        from palermo import results

        return results.wait(self._owner(), self, timeout)

    async def status_async(self) -> "JobStatus":
        """`status` for asyncio programs, whose event loop goes on meanwhile."""
        from palermo import results

        return await results.status_async(self._owner(), self)

    async def result_async(self, timeout: float | None = None) -> Any:
        """`result` for asyncio programs. Any number may wait at once; all share one subscription to the journal."""
        from palermo import results

        return await results.result_async(self._owner(), self, timeout)

    async def wait_async(self, timeout: float | None = None) -> "JobStatus":
        """`wait` for asyncio programs."""
        from palermo import results

        return await results.wait_async(self._owner(), self, timeout)

    def as_duplicate(self, id: str, state: str, *, enqueued: bool) -> "Job":
        """The handle of the job that has the key instead."""
        return replace(self, id=id, duplicate=state, enqueued=enqueued, created_at=None)

    def _owner(self) -> "Client":
        if self._client is not None:
            return self._client
        from palermo.client import default_client

        return default_client()

    def __reduce__(self) -> tuple[Any, ...]:
        # A client stays in its process; in another one the default client is asked.
        return Job, (self.id, self.queue, self.job, self.enqueued, self.duplicate, self.created_at, self.keep_result)
