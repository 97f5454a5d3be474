"""The base of the inspector's classes: the client, the actor, and limits."""

from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec.structs import replace

from palermo.client.actor import Actor, record_action
from palermo.client.failed_queues import sweep_failed
from palermo.contract import clock
from palermo.contract.broker import Broker, Page, QueueInfo
from palermo.contract.finding import CANCELLED
from palermo.contract.row_types import JobRow, QueueRow, WorkerRow
from palermo.contract.rows import Row, job_row, queue_row, worker_row
from palermo.contract.serialization import MAX_DECOMPRESSED
from palermo.contract.sweep import SweepProgress
from palermo.contract.trouble import unless_blocked
from palermo.contract.worker_info import WorkerInfo
from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.core.topology import FAILED_QUEUE, is_failed
from palermo.errors import NotFound, PalermoError
from palermo.inspector.judges import (
    NO_FAILED_JOB,
    Judge,
    Progress,
    TakeJudge,
    TakenJob,
    Watching,
    report_taken,
    stoppable,
)
from palermo.inspector.rates import Snapshot
from palermo.jobs.redaction import masked_preview, masked_row
from palermo.views.facts import facts_of_row
from palermo.views.filter import JobFilter

if TYPE_CHECKING:
    from palermo.client.client import Client

T = TypeVar("T")

#: Number of waiting or scheduled jobs that a list compares with a filter.
SEARCHED = 10_000

#: Maximum seconds for workers to answer a read-only request.
PROMPT = 1.0

#: Additional seconds for a command, which can't be repeated.
_MORE = 5.0


class Context:
    """The client, actor and limits used by the inspector and all its attributes."""

    def __init__(
        self,
        client: "Client",
        actor: Actor | None = None,
        *,
        hidden: Sequence[str] | None = None,
        max_shown_bytes: int = MAX_DECOMPRESSED,
        within: float | None = None,
    ) -> None:
        """`actor` is recorded in the journal (default: the user of this process).

        `hidden` contains the patterns of names whose values are not searched (default: the `web_redact` setting). Rows
        omit the arguments of bodies larger than `max_shown_bytes`. `within` limits the wait for each response of the
        broker, in seconds. By default, only opening a session is limited. Sweeps are never limited.
        """
        self._client = client
        self._hidden = client.settings.web_redact if hidden is None else hidden
        self._max_shown_bytes = max_shown_bytes
        self._within = within
        self._actor = actor or Actor.here("python")

    @classmethod
    def of(cls, other: "Context") -> Self:
        """Return an object with the same client, actor and limits."""
        return cls(
            other._client,
            other._actor,
            hidden=other._hidden,
            max_shown_bytes=other._max_shown_bytes,
            within=other._within,
        )

    def _snapshot(self) -> Snapshot:
        """Return the queues, the workers and whether all queues are paused, with one request to the broker."""
        found = self._ask(lambda broker: broker.overview(), again=True)
        return Snapshot(
            at=clock.now(),
            queues=queue_rows(found.queues),
            workers=self._worker_rows(found.workers),
            all_paused=found.all_paused,
            trouble=found.trouble,
        )

    def _ask(self, question: Callable[[Broker], Coroutine[Any, Any, T]], *, again: bool = False) -> T:
        """Return the answer. Raises BrokerBlocked early if the request must store something on a blocked broker."""
        within = self._within if self._within is None or again else self._within + _MORE
        return self._client.run(lambda broker: unless_blocked(broker, question(broker)), again=again, within=within)

    def _record(self, action: str, *, by: str = "", **facts: Any) -> None:
        """Record an action in the journal. See palermo.client.actor.record_action."""
        record_action(self._client, replace(self._actor, name=by) if by else self._actor, action, **facts)

    def _take(
        self,
        action: str,
        which: object,
        judge: TakeJudge,
        sweep: Callable[[Judge, Progress], object],
        watching: Watching,
        *,
        queue: str | None = None,
        details: str = "",
        missing: str = NO_FAILED_JOB,
    ) -> list[TakenJob]:
        """Run a sweep whose judge takes jobs, record the action, then report errors. Returns the taken jobs.

        `which` is the caller's selection. `missing` is the error text for ids that weren't found.
        """
        began, taken, errors = clock.now(), judge.taken, list[PalermoError]()
        try:
            sweep(stoppable(watching.get("stop"), judge), report_taken(taken, watching))
            errors += filter(None, (judge.refusal, judge.missing_error(missing)))
        except PalermoError as error:
            errors.append(error)
            raise
        finally:
            failed = bool(errors) and not taken
            ids = [job.id for job in taken] or (list(judge.selection.ids) if failed else [])
            chosen = "" if isinstance(which, str | Iterable) else str(which)
            about = (details, chosen, type(errors[0]).__name__ if failed else "")
            self._record(
                action,
                queue=queue,
                ids=ids,
                what=", ".join(filter(None, about)) or None,
                outcome="failed" if failed else "done",
                at=began,
            )
        on_error = watching.get("on_error")
        for each in errors:
            if on_error is None:
                raise each
            on_error(each)
        return taken

    def _browse(self, queue: str, *, offset: int = 0, limit: int = 100, newest: bool = False) -> Page:
        return none_failed(
            queue,
            Page(messages=(), total=0),
            lambda: self._ask(
                lambda broker: broker.browse(
                    queue, offset=offset, limit=limit, newest=newest, max_body=self._max_shown_bytes
                ),
                again=True,
            ),
        )

    def _read_failed(
        self, judge: Judge, progress: Progress | None = None, *, ids: Collection[str] = ()
    ) -> SweepProgress:
        # Only reads, for up to minutes, so nothing has to be stored.
        return self._client.run(lambda broker: sweep_failed(broker, judge, progress, only_look=True, ids=ids))

    def _shown(self, message: Message) -> str | None:
        return masked_preview(message, self._client.serializers, self._hidden)

    def _fits(self, row: Row, filter: JobFilter) -> bool:
        """Whether a job's row matches a filter. Hidden values aren't searched."""
        return filter.matches(facts_of_row(masked_row(row, self._hidden)))

    def _worker_rows(self, found: Iterable[WorkerInfo]) -> list[WorkerRow]:
        serializers, max_bytes = self._client.serializers, self._max_shown_bytes
        return [worker_row(info, serializers, max_bytes=max_bytes) for info in found]

    def _rows(self, messages: Sequence[Message], state: JobState, cancelled: Collection[str] = ()) -> list[JobRow]:
        """Return the rows of jobs in this state, without the ids in `cancelled`."""
        serializers, max_bytes = self._client.serializers, self._max_shown_bytes
        rows = [job_row(message, state, serializers, max_bytes=max_bytes) for message in messages]
        for row, message in zip(rows, messages, strict=True):
            if message.id in cancelled:
                row["state"] = CANCELLED
        return rows


def queue_rows(found: Iterable[QueueInfo]) -> list[QueueRow]:
    """Return the rows of all queues by name, always including `failed`."""
    rows = {info.name: queue_row(info) for info in found}
    none: QueueRow = {"name": FAILED_QUEUE, "pending": 0, "in_progress": 0, "workers": 0, "paused": False}
    rows.setdefault(FAILED_QUEUE, none)
    return [rows[name] for name in sorted(rows)]


def none_failed(queue: str, none: T, ask: Callable[[], T]) -> T:
    """Return the broker's answer, or `none` if the failed queue doesn't exist because no job has failed yet."""
    try:
        return ask()
    except NotFound:
        if is_failed(queue):
            return none
        raise
