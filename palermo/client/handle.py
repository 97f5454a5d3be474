"""The handle of an enqueued job: its status, its end and its result.

palermo/client/status.py and results.py implement the requests. They are imported on first use, so that a program that
only enqueues jobs doesn't load them.
"""

from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal

from palermo.core.times import Duration
from palermo.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # bundled with type checkers

    from palermo.client.status import JobClient, JobStatus

    #: Return type of the job. Any if unknown: for a plain `palermo.Job`, or a handle obtained by name or id.
    R_co = TypeVar("R_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Conflict:
    """The enqueued job's unique key was held by another job (docs/guides/unique.md)."""

    #: "returned": nothing was stored, and this is the handle of the other job. "replaced": the other job was waiting
    #: and now has the new arguments; this is its handle. "displaced": the other job was waiting for the key and won't
    #: run, because the new job runs instead.
    outcome: Literal["returned", "replaced", "displaced"]
    #: The id of the other job, or of this job if it displaced an earlier enqueue with the same id.
    id: str
    #: State of the other job: "waiting", "running", or "ended" if the key stays closed after the job. "recent" if it is
    #: held for a time from the enqueue (`unique=<duration>`) or the start (`until_start`): the job may have ended.
    state: str


@dataclass(frozen=True, slots=True)
class Job(Generic[R_co]):
    """The handle of an enqueued job. It is false if the call stored nothing.

    Nothing is stored if a before_enqueue hook rejects the job, or another job holds its key (docs/guides/unique.md).

    `palermo.job_by_id(id)` returns a handle for any job without sending a request; its queue and name are "".
    """

    id: str
    queue: str
    #: Its wire name.
    job: str
    enqueued: bool = True
    #: The other job that held the key, or None.
    conflict: Conflict | None = None
    #: Unix seconds; None if unknown.
    created_at: int | None = field(default=None, repr=False, compare=False)
    #: Whether its result is kept; None if unknown.
    keep_result: bool | None = field(default=None, repr=False, compare=False)
    _client: "JobClient | None" = field(default=None, repr=False, compare=False)

    def __bool__(self) -> bool:
        return self.enqueued

    def status(self) -> "JobStatus":
        """Return the job's current state and all other known details, as a palermo.client.status.JobStatus.

        Raises BrokerUnavailable, BrokerRefused.
        """
        from palermo.client import status

        client = self._owner()
        return client.watch(status.find_status(client, self))

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the job to end, and return its return value.

        `timeout` is in seconds or a timedelta; by default there is no limit. Raises ResultTimeout; JobFailed if the job
        failed, was discarded or cancelled; ResultNotKept for a job without `keep_result`, or if the journal no longer
        has the result; ResultRefused if the value was too large or couldn't be serialized; JournalOff; NotFound for an
        unknown id; and BrokerRefused.
        """
        from palermo.client import results

        client = self._owner()
        found: R_co = results.load_result(client, client.watch(results.kept_end(client, self, timeout)))
        return found

    def wait(self, timeout: Duration | None = None) -> "JobStatus":
        """Wait for the job to end, and return its status, whether or not its result is kept. `timeout` is as in
        `result`.

        Raises ResultTimeout, JournalOff, NotFound, BrokerRefused.
        """
        from palermo.client import results, status

        client = self._owner()
        return status.status_at_end(client.watch(results.end(client, self, timeout)))

    async def status_async(self) -> "JobStatus":
        """Like `status`, without blocking the event loop."""
        from palermo.client import status

        client = self._owner()
        return await client.watch_async(status.find_status(client, self))

    async def result_async(self, timeout: Duration | None = None) -> R_co:
        """Like `result`, for asyncio programs. All waiting tasks share one subscription to the journal."""
        from palermo.client import results

        client = self._owner()
        found: R_co = results.load_result(client, await client.watch_async(results.kept_end(client, self, timeout)))
        return found

    async def wait_async(self, timeout: Duration | None = None) -> "JobStatus":
        """Like `wait`, for asyncio programs."""
        from palermo.client import results, status

        client = self._owner()
        return status.status_at_end(await client.watch_async(results.end(client, self, timeout)))

    def signal(self, name: str, value: Any = None) -> None:
        """Send a signal to a workflow. The step that waits for it is done, with this value as its output.

        The signal may be sent before the step waits for it. A second signal with the same name has no effect. Raises
        NotFound if the workflow hasn't added its steps yet or has ended, OptionInvalid for an invalid name,
        EncodeError, BodyTooLarge and BrokerUnavailable.
        """
        from palermo.client import control

        client = self._owner()
        client.watch(control.signal(client, self.id, name, value))

    async def signal_async(self, name: str, value: Any = None) -> None:
        """Like `signal`, for asyncio programs."""
        from palermo.client import control

        client = self._owner()
        await client.watch_async(control.signal(client, self.id, name, value))

    def cancel(self) -> None:
        """Cancel the job, or the workflow with its steps. A waiting job is dropped, and a running job is stopped.

        Raises BrokerUnavailable, BrokerRefused.
        """
        from palermo.client import control

        self._owner().watch(control.cancel(self.id))

    async def cancel_async(self) -> None:
        """Like `cancel`, for asyncio programs."""
        from palermo.client import control

        await self._owner().watch_async(control.cancel(self.id))

    def _owner(self) -> "JobClient":
        if self._client is None:
            raise UsageError(
                f"this handle of job {self.id} has no client. Get another with palermo.job_by_id({self.id!r})."
            )
        return self._client

    def __reduce__(self) -> tuple[Any, ...]:
        # A client can't be pickled. In another process the handle uses the default client.
        given = {each.name: getattr(self, each.name) for each in fields(Job) if each.name != "_client"}
        return (partial(Job, **given), ()) if self._client is None else (self._client.unpickled_job, (given,))
