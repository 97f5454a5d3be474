"""The context of the inspector's methods: the client that is asked, who acts, and how much of a job is shown."""

from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from palermo.client.actor import Actor, record_action
from palermo.client.failed_queues import read_failed, sweep_failed
from palermo.client.status import locate_waiting
from palermo.contract import clock
from palermo.contract.broker import Broker, QueueInfo
from palermo.contract.row_types import JobRow, QueueRow, WorkerRow
from palermo.contract.rows import job_row, queue_row, worker_row
from palermo.contract.serialization import MAX_DECOMPRESSED
from palermo.contract.sweep import SweepDecision, SweepProgress
from palermo.contract.trouble import Trouble, unless_blocked
from palermo.contract.worker_info import WorkerInfo
from palermo.core.lifecycle import JobState
from palermo.core.message import Message
from palermo.core.topology import FAILED_QUEUE
from palermo.errors import PalermoError
from palermo.inspector.judges import TakenJob
from palermo.inspector.masking import masked_preview
from palermo.inspector.rates import Snapshot

if TYPE_CHECKING:
    from palermo.client.client import Client

T = TypeVar("T")

#: Is told how far a long command is.
Progress = Callable[[SweepProgress], None]


class Context:
    """What the inspector's methods need. The inspector is one, with these methods."""

    #: A row shows no arguments of a body with more bytes than this.
    _max_shown_bytes = MAX_DECOMPRESSED

    def __init__(self, client: "Client", actor: Actor | None = None, *, hidden: Sequence[str] | None = None) -> None:
        """`actor` is who acts through this inspector, for the journal; the user of this process unless given.

        `hidden` has the patterns of names whose values no filter searches; the setting web_redact unless given.
        """
        self._client = client
        self._hidden = client.settings.web_redact if hidden is None else hidden
        self._actor = actor or Actor.here("python")

    def queues(self) -> list[QueueRow]:
        """All queues by name, always with `failed`."""
        return _queue_rows(self._ask(lambda broker: broker.queues(), again=True))

    def workers(self) -> list[WorkerRow]:
        """All workers that are alive, by id, with the jobs they run.

        One that does not answer has `answers` False, the state "silent" and what was known of it last. One that this
        user may not ask has the state "unasked" instead.
        """
        return self._worker_rows(self._ask(lambda broker: broker.workers(), again=True))

    def snapshot(self) -> Snapshot:
        """`queues`, `workers` and whether all queues are paused, for which the broker is asked once."""
        found = self._ask(lambda broker: broker.overview(), again=True)
        return Snapshot(
            at=clock.now(),
            queues=_queue_rows(found.queues),
            workers=self._worker_rows(found.workers),
            all_paused=found.all_paused,
            trouble=found.trouble,
        )

    def trouble(self) -> Trouble | None:
        """Why the broker stores nothing now, or lets this user ask no worker; None if neither is so.

        Raises BrokerUnavailable if it does not answer.
        """
        return self._ask(lambda broker: broker.find_trouble(), again=True)

    def _ask(self, question: Callable[[Broker], Coroutine[Any, Any, T]], *, again: bool = False) -> T:
        """The answer. Raises BrokerBlocked soon if the broker has to store something first, and stores nothing."""
        return self._client.run(lambda broker: unless_blocked(broker, question(broker)), again=again)

    def _record(self, action: str, *, by: str = "", **facts: Any) -> None:
        """Write an action into the journal; see palermo.client.actor.record_action."""
        record_action(self._client, replace(self._actor, name=by) if by else self._actor, action, **facts)

    @contextmanager
    def _taking(
        self, action: str, which: object, taken: Sequence[TakenJob], *, queue: str | None = None, what: str = ""
    ) -> Iterator[list[PalermoError | None]]:
        """Record an action that takes jobs, with those in `taken` at the end of the `with` statement.

        The body adds its errors to the list. If there are errors and no job was taken, the action has failed.
        """
        began, errors = clock.now(), list[PalermoError | None]()
        asked = [] if isinstance(which, str | Iterable) else [str(which)]
        try:
            yield errors
        except PalermoError as error:
            errors.append(error)
            raise
        finally:
            ids, outcome = [job.id for job in taken], "done"
            wrong = [type(error).__name__ for error in errors if error is not None]
            if wrong and not ids:
                outcome = "failed"
                ids = [which] if isinstance(which, str) else [*which] if isinstance(which, Sequence) else []
            told = ", ".join(filter(None, (what, *asked, *(wrong[:1] if outcome == "failed" else ()))))
            self._record(action, queue=queue, ids=ids, what=told or None, outcome=outcome, at=began)

    def _sweep_failed(
        self,
        judge: Callable[[Message], SweepDecision],
        progress: Progress | None = None,
        *,
        ids: Collection[str] = (),
    ) -> None:
        self._ask(lambda broker: sweep_failed(broker, judge, progress, ids=ids))

    def _read_failed(
        self,
        judge: Callable[[Message], SweepDecision],
        progress: Progress | None = None,
        *,
        ids: Collection[str] = (),
    ) -> SweepProgress:
        # Reading may take minutes, and needs nothing stored.
        return self._client.run(lambda broker: read_failed(broker, judge, progress, ids=ids))

    def _shown(self, message: Message) -> str | None:
        return masked_preview(message, self._client.serializers, self._hidden)

    def _worker_rows(self, found: Iterable[WorkerInfo]) -> list[WorkerRow]:
        serializers, max_bytes = self._client.serializers, self._max_shown_bytes
        return [worker_row(info, serializers, max_bytes=max_bytes) for info in found]

    def _rows(self, messages: Sequence[Message], state: JobState) -> list[JobRow]:
        serializers, max_bytes = self._client.serializers, self._max_shown_bytes
        return [job_row(message, state, serializers, max_bytes=max_bytes) for message in messages]


def _queue_rows(found: Iterable[QueueInfo]) -> list[QueueRow]:
    """The rows of all queues, by name. One of `failed` is always among them."""
    rows = {info.name: queue_row(info) for info in found}
    none: QueueRow = {"name": FAILED_QUEUE, "pending": 0, "in_progress": 0, "workers": 0, "paused": False}
    rows.setdefault(FAILED_QUEUE, none)
    return [rows[name] for name in sorted(rows)]


def waiting_job(context: Context, id: str, queue: str = "") -> tuple[JobRow, Message] | None:
    """A job that `locate` sees in a queue, its row and its message.

    `queue` is the one to look in, "" if that is not known.
    """
    place = context._ask(lambda broker: locate_waiting(broker, id, queue), again=True)
    if place is None or place.message is None:
        return None
    return {**context._rows((place.message,), JobState.PENDING)[0], "state": place.state}, place.message
