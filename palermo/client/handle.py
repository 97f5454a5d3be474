"""The handle of an enqueued job: its status, its end and its result.

The requests are in palermo/client/status.py and results.py. Those are imported on first use, so that a module that
only enqueues jobs doesn't load them.
"""

from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal

from palermo.core.times import Duration
from palermo.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers bundle it

    from palermo.client.status import JobClient, JobStatus

    #: Return type of the job. Any if unknown: for plain `palermo.Job`, and for a handle by name or id.
    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another job had the key of the enqueued job (docs/guides/unique.md)."""

    #: "returned": nothing was stored, and the handle is that of the other job. "replaced": the other job was waiting
    #: and now has this call's arguments; the handle is that of the other job. "displaced": the other job was waiting
    #: for the key and won't run, because this call's job runs instead.
    outcome: Literal["returned", "replaced", "displaced"]
    #: The id of the other job; the job's own id if an earlier enqueue with the same id was displaced.
    id: str
    #: State of the other job: "waiting", "running", or "ended" if the key stays closed after its end.
    state: str


@dataclass(frozen=True, slots=True)
class Job(Generic[R_co]):
    """The handle of an enqueued job. It is falsy if this call stored nothing.

    This happens if a before_enqueue hook rejected the job, or if another job has its key (docs/guides/unique.md).

    `palermo.job_by_id(id)` returns a handle for any job, without a request; its queue and name are "".
    """

    id: str
    queue: str
    #: Its wire name.
    job: str
    enqueued: bool = True
    #: The other job with the same key, or None.
    conflict: Conflict | None = None
    #: Unix seconds; None if unknown.
    created_at: int | None = field(default=None, repr=False, compare=False)
    #: Whether its result is kept; None if unknown.
    keep_result: bool | None = field(default=None, repr=False, compare=False)
    _client: "JobClient | None" = field(default=None, repr=False, compare=False)

    def __bool__(self) -> bool:
        return self.enqueued

    def status(self) -> "JobStatus":
        """The job's current status: its state in one word, and all other known details. See
        palermo.client.status.JobStatus.

        Raises BrokerUnavailable, BrokerRefused.
        """
        from palermo.client import status

        client = self._owner()
        return client.watch(status.find_status(client, self))

    def result(self, timeout: Duration | None = None) -> R_co:
        """The value that the job returned, once it has ended. Waits at most `timeout`, seconds or a timedelta; by
        default without a limit.

        Raises ResultTimeout; JobFailed if it failed, was discarded or cancelled; ResultNotKept for a job without
        `keep_result`, or if the journal no longer has the result; ResultRefused if the value is too large or can't be
        serialized; JournalOff; NotFound for an unknown id; and BrokerRefused.
        """
        from palermo.client import results

        client = self._owner()
        found: R_co = results.load_result(client, client.watch(results.kept_end(client, self, timeout)))
        return found

    def wait(self, timeout: Duration | None = None) -> "JobStatus":
        """Wait for the job to end and return its status, whether its result is kept or not; `timeout` as for `result`.

        Raises ResultTimeout, JournalOff, NotFound, BrokerRefused.
        """
        from palermo.client import results, status

        client = self._owner()
        return status.status_at_end(client.watch(results.end(client, self, timeout)))

    async def status_async(self) -> "JobStatus":
        """`status` for asyncio programs: does not block their event loop."""
        from palermo.client import status

        client = self._owner()
        return await client.watch_async(status.find_status(client, self))

    async def result_async(self, timeout: Duration | None = None) -> R_co:
        """`result` for asyncio programs. Any number of tasks may wait; all share one subscription to the journal."""
        from palermo.client import results

        client = self._owner()
        found: R_co = results.load_result(client, await client.watch_async(results.kept_end(client, self, timeout)))
        return found

    async def wait_async(self, timeout: Duration | None = None) -> "JobStatus":
        """`wait` for asyncio programs."""
        from palermo.client import results, status

        client = self._owner()
        return status.status_at_end(await client.watch_async(results.end(client, self, timeout)))

    def signal(self, name: str, value: Any = None) -> None:
        """Send a signal to a workflow: the step that waits for it is done, with this value as its output.

        The signal may arrive before the step waits. A second signal with the same name changes nothing. Raises
        NotFound for a workflow that has not added its steps yet or has ended; EncodeError, BodyTooLarge,
        BrokerUnavailable.
        """
        from palermo.client import control

        client = self._owner()
        client.watch(control.signal(client, self.id, name, value))

    async def signal_async(self, name: str, value: Any = None) -> None:
        """`signal` for asyncio programs."""
        from palermo.client import control

        client = self._owner()
        await client.watch_async(control.signal(client, self.id, name, value))

    def cancel(self) -> None:
        """Cancel the job, or the workflow with its steps. A waiting job is dropped; a running job is stopped.

        Raises BrokerUnavailable, BrokerRefused.
        """
        from palermo.client import control

        self._owner().watch(control.cancel(self.id))

    async def cancel_async(self) -> None:
        """`cancel` for asyncio programs."""
        from palermo.client import control

        await self._owner().watch_async(control.cancel(self.id))

    def _owner(self) -> "JobClient":
        if self._client is None:
            raise UsageError(
                f"this handle of job {self.id} has no client. Get another with palermo.job_by_id({self.id!r})."
            )
        return self._client

    def __reduce__(self) -> tuple[Any, ...]:
        # A client stays in its process; in another process the handle uses the default client.
        given = {each.name: getattr(self, each.name) for each in fields(Job) if each.name != "_client"}
        return (partial(Job, **given), ()) if self._client is None else (self._client.unpickled_job, (given,))
