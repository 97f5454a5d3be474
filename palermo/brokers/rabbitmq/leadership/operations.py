"""The requests to the leaders. The types of their fields, and of the replies, are the wire format.

`LeaderClient.ask` sends a request to the leader of its duty. A request may be executed twice, because a leader may die
after acting and before replying.

Readers ignore unknown fields. A release that changes the meaning of a request raises FORMAT. A leader that gets a
request in a newer format hands over to a newer leader, to which the request is then sent again.
"""

from collections.abc import Callable
from functools import cache, reduce
from operator import or_
from typing import Any, ClassVar, Generic, TypeVar, get_args

from msgspec import UNSET, MsgspecError, Struct, UnsetType, json

from palermo.brokers.rabbitmq.publishing.ledger_records import HandsOver, NewerFormat
from palermo.contract.broker import Tenant
from palermo.contract.recurring_entries import EntryChange, RecurringEntry
from palermo.contract.scheduled import AlteredJob, ScheduledFilter
from palermo.contract.worker_info import RunningJob
from palermo.contract.workflows import WorkflowInfo
from palermo.core.election import Duty
from palermo.core.job_edit import JobEdit
from palermo.core.limits import LimitDemand, LimitInfo, RunLater, RunNow
from palermo.core.message import Message
from palermo.core.unique_keys import (
    Key,
    KeyRequest,
    UniqueLock,
    lock_of,
    message_from_plain,
    message_to_plain,
    with_lock,
)
from palermo.core.unique_rules import EnqueueAnswer, StartAnswer
from palermo.core.workflow_rules import How
from palermo.errors import BrokerUnavailable, HeadersTooLarge, NotFound, PalermoError, PublishRefused

T = TypeVar("T")

#: The format of the requests, contained in each.
FORMAT = 1


class AsJson(Generic[T]):
    """A value with its own JSON form, because its message may have headers that JSON lacks."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


class Operation(Struct, Generic[T], frozen=True, kw_only=True, tag_field="ask", tag=True):
    """A request to the leader of one duty. Its reply is a T."""

    duty: ClassVar[Duty] = Duty.MAIN
    #: Errors that keep their class on the way to the caller.
    raises: ClassVar[tuple[type[PalermoError], ...]] = ()

    format: int = FORMAT


class BriefOperation(Operation[T], frozen=True):
    """A request that delays a job at its enqueue or in a worker."""

    raises: ClassVar = (PublishRefused, HeadersTooLarge)


class TenantOperation(Operation[T], frozen=True):
    """A request about tenants."""

    duty: ClassVar = Duty.TENANTS


# -- leadership itself


class StandBy(Operation[None], frozen=True):
    """Reports that a worker stands by to lead, so that a stand-in leader ends.

    Its format never changes. Otherwise, while newer workers stand by, older leaders would hand over to each other.
    """

    format: int = 1


class GiveSign(BriefOperation[None], frozen=True):
    """Asks for an immediate reply, even from a busy leader, as a sign of life."""


# -- the keys of unique jobs


class EnqueueUnique(BriefOperation[list[EnqueueAnswer]], frozen=True):
    """Enqueue these jobs, each if its key is free. Replies with an answer for each."""

    claims: list[AsJson[KeyRequest]]


class Start(Struct, frozen=True):
    """The answer to a worker that is about to start a job."""

    answer: StartAnswer
    #: The message in `answer`.
    content: AsJson[Message] | None = None


class StartJob(BriefOperation[Start], frozen=True):
    """Take the key for a job that a worker is about to start."""

    id: str
    job: str
    queue: str
    tenant: str
    run_at: float | None
    #: From the message's headers, which another program may have written.
    lock: UniqueLock | None
    worker: str
    #: The id of this run.
    run: str
    #: Whether the job was delivered before.
    again: bool

    @classmethod
    def of(cls, message: Message, *, worker: str, run: str, again: bool) -> "StartJob":
        """The request for a delivered message."""
        parts = message.id, message.job, message.queue, message.tenant, message.run_at
        return cls(*parts, lock_of(message), worker, run, again)

    @property
    def message(self) -> Message:
        """The part of the message that matters for its start."""
        message = Message(id=self.id, job=self.job, queue=self.queue, tenant=self.tenant, run_at=self.run_at)
        return message if self.lock is None else with_lock(message, self.lock)


class ReadmitJobs(BriefOperation[list[bool]], frozen=True):
    """Take the keys for requeued or moved jobs. Replies for each job whether it may be requeued or moved."""

    messages: list[AsJson[Message]]


class RemoveJobs(BriefOperation[None], frozen=True):
    """Free the keys of jobs that are about to be removed, given as pairs of key and id. Running jobs keep theirs."""

    jobs: list[tuple[str, str]]
    #: Whether the jobs that would follow them are dropped too, because the whole queue is emptied.
    drop_next: bool = False


class CancelJobs(BriefOperation[None], frozen=True):
    """Free the keys of cancelled jobs. Running jobs keep theirs."""

    ids: list[str]


class FreeKeys(BriefOperation[list[str]], frozen=True):
    """Take these keys from their holders. Replies with the keys that existed."""

    names: list[str]


class Keys(Struct, frozen=True):
    """A page of keys, and their total number."""

    keys: list[AsJson[Key]]
    total: int


class ListKeys(BriefOperation[Keys], frozen=True):
    """Replies with a page of the keys that contain the text, starting after the name `after`."""

    text: str
    offset: int
    limit: int
    after: str = ""


class FindKeys(BriefOperation[Keys], frozen=True):
    """Replies with the keys that have these names; the total is the number of names that the leader has looked up."""

    names: list[str]


# -- limits


class RequestPermit(BriefOperation[RunNow | RunLater], frozen=True):
    """Request a permit to run a limited job. Replies whether it may run now or later."""

    demand: LimitDemand
    id: str
    worker: str


class EndRun(BriefOperation[None], frozen=True):
    """Release the permit of an ended run. The request may be lost, since the leader also asks the workers."""

    key: str
    id: str
    worker: str


class ListLimits(BriefOperation[list[LimitInfo]], frozen=True):
    """Replies with all known limited keys, by name."""


# -- scheduled and recurring jobs


class Scheduled(Struct, frozen=True):
    """A page of scheduled jobs, and their total number."""

    messages: list[AsJson[Message]]
    total: int


class ListScheduled(Operation[Scheduled], frozen=True):
    """Replies with a page of the scheduled jobs that match the filter."""

    chosen: ScheduledFilter
    offset: int
    limit: int


class ListingProgress(BriefOperation[tuple[int, int] | None], frozen=True):
    """Replies with the progress of the current ListScheduled: the jobs read and the jobs to read, or None."""


class AlterScheduled(Operation[list[AlteredJob]], frozen=True):
    """Cancel, run, move or give up the matching scheduled jobs. Replies with these jobs."""

    chosen: ScheduledFilter
    action: str
    #: The instant for "move", in Unix seconds.
    at: float | None
    #: Whether each queue has its own failed queue.
    failed_per_queue: bool


class EditScheduled(Operation[list[AlteredJob]], frozen=True):
    """Change the scheduled job with this id. Replies with the job."""

    id: str
    edit: AsJson[JobEdit]


class ListRecurring(Operation[list[AsJson[RecurringEntry]]], frozen=True):
    """Replies with all recurring jobs, by name."""


class ChangeRecurring(Operation[None], frozen=True):
    """Change a recurring job. Raises NotFound."""

    raises: ClassVar = (NotFound,)

    change: AsJson[EntryChange]


# -- workflows


class ListWorkflows(BriefOperation[list[WorkflowInfo]], frozen=True):
    """Replies with the running and failed workflows, or with the one that has this id."""

    id: str | None


class WorkflowPlace(Struct, frozen=True):
    """A running workflow, or the message of a failed one."""

    running: RunningJob | None = None
    message: AsJson[Message] | None = None


class LocateWorkflows(BriefOperation[list[WorkflowPlace]], frozen=True):
    """Replies with the workflows that have these ids."""

    ids: list[str]


class ListFailedSteps(BriefOperation[list[str]], frozen=True):
    """Replies with the ids of a workflow's failed jobs."""

    id: str


class CancelWorkflows(BriefOperation[list[str]], frozen=True):
    """Cancel the workflows with these ids. Replies with the ids of their waiting and running jobs."""

    ids: list[str]


class SignalWorkflow(Operation[None], frozen=True):
    """Send a signal to a workflow, with a value in base64. Raises NotFound."""

    raises: ClassVar = (NotFound,)

    id: str
    name: str
    content_type: str
    value: str


class RequeueSteps(BriefOperation[list[dict[str, Any] | None]], frozen=True):
    """Run failed steps again. Replies with new headers for each, or None for a step that must not run again."""

    messages: list[AsJson[Message]]


class MeasureWorkflows(Operation[int], frozen=True):
    """Replies with the size of all workflows in bytes, in the leader's memory and in its ledger."""


class HasEnded(BriefOperation[bool], frozen=True):
    """Replies whether the leader has recorded the end of this run of a step."""

    workflow: str
    path: str
    generation: int


class EndSteps(BriefOperation[None], frozen=True):
    """End steps whose jobs are about to be removed."""

    messages: list[AsJson[Message]]
    how: How


# -- tenants


class CountTenantJobs(TenantOperation[dict[str, int]], frozen=True):
    """Replies with the number of jobs in tenants' queues, by job queue."""


class ListTenants(TenantOperation[list[Tenant]], frozen=True):
    """Replies with the tenants of one job queue that have their own queues, empty or not."""

    queue: str


class RequeueTenantJobs(TenantOperation[None], frozen=True):
    """Requeue the jobs of the queue's tenants that the leader holds."""

    queue: str
    #: Whether the leader must also not move their jobs as long as a session locks the tenants' queues.
    still: bool = False


class HasTenantJobs(TenantOperation[bool], frozen=True):
    """Replies whether the tenant's own queue has jobs, or might have some."""

    queue: str
    tenant: str


# -- on the wire


class LeaderFailed(BrokerUnavailable):
    """The leader could not execute the request."""


class Reply(Struct, Generic[T], frozen=True, omit_defaults=True):
    """The reply to a request: its value, or an error."""

    value: T | UnsetType = UNSET
    error: str = ""
    #: The name of the error's class.
    kind: str = ""


class _AnyFormat(Struct):
    format: int = FORMAT


#: Errors that keep their class on the way to the caller, by name.
_RAISED: dict[str, type[PalermoError]] = {
    one.__name__: one for one in (NewerFormat, HandsOver, NotFound, PublishRefused, HeadersTooLarge)
}


def _to_plain(value: AsJson[Any]) -> Any:
    one = value.value
    return message_to_plain(one) if isinstance(one, Message) else one.to_plain()


def _from_plain(kind: Any, plain: Any) -> AsJson[Any]:
    (one,) = get_args(kind)
    return AsJson(message_from_plain(plain) if one is Message else one.from_plain(plain))


def _kinds(of: Any) -> list[Any]:
    below = of.__subclasses__()
    return [kind for one in below for kind in _kinds(one)] if below else [of]


#: Writes requests and replies.
write: Callable[[Any], bytes] = json.Encoder(enc_hook=_to_plain).encode

_requests = json.Decoder(reduce(or_, _kinds(Operation)), dec_hook=_from_plain)
_formats = json.Decoder(_AnyFormat)


def read(body: bytes, newest: int = FORMAT) -> Operation[Any]:
    """Parse the request in a message. Raises NewerFormat, ValueError, and other errors for invalid values."""
    try:
        operation: Operation[Any] = _requests.decode(body)
    except MsgspecError:
        if _formats.decode(body).format > newest:
            raise NewerFormat("the request has a newer format.") from None
        raise
    if operation.format > newest:
        raise NewerFormat("the request has a newer format.")
    return operation


def write_error(error: Exception, raises: tuple[type[PalermoError], ...] = ()) -> bytes:
    """The reply for an error. HandsOver, NewerFormat and the errors in `raises` keep their class."""
    kinds: tuple[type[PalermoError], ...] = (NewerFormat, HandsOver, *raises)
    kind = next((one.__name__ for one in kinds if isinstance(error, one)), "")
    return write(Reply[None](error=str(error), kind=kind))


def read_reply(operation: Operation[T], body: bytes) -> T:
    """The value in a reply, or its error: one that the operation `raises`, HandsOver, or LeaderFailed."""
    reply: Reply[T] = _replies(type(operation)).decode(body)
    if isinstance(reply.value, UnsetType):
        raise _RAISED.get(reply.kind, LeaderFailed)(reply.error)
    return reply.value


@cache
def _replies(kind: type[Operation[Any]]) -> "json.Decoder[Any]":
    """The decoder for replies to this kind of request. Their type is in its base class: `class X(Operation[T])`."""
    (value,) = get_args(kind.__orig_bases__[0])  # type: ignore[attr-defined]
    return json.Decoder(Reply[value], dec_hook=_from_plain)  # type: ignore[valid-type]
