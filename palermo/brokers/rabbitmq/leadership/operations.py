"""The operations of the leaders: requests as values, and their JSON on the wire (docs/internals/wire.md).

LeaderClient.ask asks for an operation, whichever process leads in its duty, and Leader.handle does it. An operation may
be done twice: a leader may die after it has acted and before its reply is sent. Fields have the names that they have in
JSON.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from msgspec import Struct

from palermo.brokers.rabbitmq.amqp.messages import to_message, to_properties
from palermo.brokers.rabbitmq.amqp.rpc import Part
from palermo.brokers.rabbitmq.leadership.reply_forms import (
    Plain,
    Reply,
    reply_of_one,
    reply_of_rows,
    reply_of_values,
    to_plain_json,
)
from palermo.contract.broker import KeyPage, Tenant
from palermo.contract.recurring_entries import EntryChange, RecurringEntry
from palermo.contract.scheduled import AlteredJob, ScheduledFilter, ScheduledPage
from palermo.core.election import Duty
from palermo.core.job_edit import JobEdit
from palermo.core.limits import LimitDemand, LimitInfo, Rate, RunLater, RunNow
from palermo.core.message import Message
from palermo.core.unique_keys import (
    LINGER,
    UNIQUE,
    UNIQUE_KEY,
    Key,
    KeyRequest,
    lock_of,
    message_from_plain,
    with_lock,
)
from palermo.core.unique_rules import EnqueueAnswer, EnqueueOutcome, StartAnswer, StartReason
from palermo.errors import NotFound, PalermoError, PublishRefused

T = TypeVar("T")

#: The parts of a message that decide whether its job may start, apart from the headers about its key.
_START_PARTS = ("id", "job", "queue", "tenant", "run_at")


#: The duties of the operations, by what their requests ask. All others are about time.
_DUTIES = {"keys": Duty.KEYS, "clear tenants": Duty.KEYS, "tenants": Duty.TENANTS}


class Operation(Struct, Generic[T], frozen=True):
    """A request to the leader in one duty. Its reply is a T."""

    #: The constant part of the request, and the form of its reply.
    kind: ClassVar[Plain]
    reply: ClassVar[Reply] = reply_of_values(lambda _: {}, lambda _: None)
    #: The errors that are part of a reply, by their name in it; the caller gets them as they were raised.
    errors: ClassVar[Mapping[str, type[PalermoError]]] = {}

    @property
    def duty(self) -> Duty:
        """The duty of the leader that does it."""
        return _DUTIES.get(self.kind["ask"], Duty.TIME)

    def to_plain(self) -> dict[str, Any]:
        """The request as JSON values; `from_plain` reads it."""
        return {**self.kind, **{name: to_plain_json(getattr(self, name)) for name in self.__struct_fields__}}

    def reply_from_parts(self, parts: Sequence[Part]) -> T:
        """The reply that came. Raises the error that it reports."""
        values = parts[-1].values or {}
        for name, error in self.errors.items():
            if name in values:
                raise error(str(values[name]))
        reply: T = self.reply.read(parts)
        return reply


class BriefOperation(Operation[T], frozen=True):
    """An operation on keys or permits: a job waits for it, at its enqueue or in a worker. Its reply is one part."""

    errors: ClassVar = {"refused": PublishRefused}


# -- the keys of unique jobs


class GiveSign(BriefOperation[None], frozen=True):
    """The leader replies at once, whatever it does, as a sign that it lives."""

    kind: ClassVar = {"ask": "keys", "do": "sign"}


def _answer_to_plain(answer: EnqueueAnswer) -> dict[str, Any]:
    plain = {"outcome": str(answer.outcome), "id": answer.id, "state": str(answer.state)}
    return {**plain, "instead_of": answer.instead_of}


def _answer_from_plain(plain: Plain) -> EnqueueAnswer:
    return EnqueueAnswer(
        outcome=EnqueueOutcome(plain["outcome"]), id=plain["id"], state=plain["state"], instead_of=plain["instead_of"]
    )


class EnqueueUnique(BriefOperation[list[EnqueueAnswer]], frozen=True):
    """Store these jobs, each if its key is free. The reply has an answer for each."""

    kind: ClassVar = {"ask": "keys", "do": "enqueue"}
    reply: ClassVar = reply_of_one(
        "answers",
        read=lambda answers: [_answer_from_plain(one) for one in answers],
        write=lambda answers: [_answer_to_plain(one) for one in answers],
    )

    claims: list[KeyRequest]


def _start_to_plain(start: StartAnswer) -> dict[str, Any]:
    plain = {"why": start.why, "holder": start.holder, "serial": start.serial, "starts": start.starts}
    return {**plain, "tell": start.tell, "content": to_plain_json(start.content)}


def _start_from_plain(plain: Plain) -> StartAnswer:
    content = plain["content"]
    return StartAnswer(
        why=StartReason(plain["why"]),
        holder=plain["holder"],
        serial=plain["serial"],
        starts=plain["starts"],
        tell=plain["tell"],
        content=None if content is None else message_from_plain(content),
    )


class StartJob(BriefOperation[StartAnswer], frozen=True):
    """Have a job take its key, since a worker wants to start it. The reply says whether it may."""

    kind: ClassVar = {"ask": "keys", "do": "start"}
    reply: ClassVar = reply_of_one("start", _start_from_plain, _start_to_plain)

    #: Only the parts that decide about its start: see `of`.
    message: Message
    worker: str
    #: The id of this run.
    run: str
    #: Whether the job was delivered before.
    again: bool

    @classmethod
    def of(cls, message: Message, *, worker: str, run: str, again: bool) -> "StartJob":
        """The operation for a message as it was delivered."""
        lock, parts = lock_of(message), {name: getattr(message, name) for name in _START_PARTS}
        # The lock as it was parsed, and not its headers: another program may have put anything into them.
        bare = Message(**parts) if lock is None else with_lock(Message(**parts), lock)
        return cls(bare, worker, run, again)

    def to_plain(self) -> dict[str, Any]:
        message = {**{name: getattr(self.message, name) for name in _START_PARTS}, **self.message.extra}
        return {**self.kind, "message": message, "worker": self.worker, "run": self.run, "again": self.again}


class ReadmitJobs(BriefOperation[list[bool]], frozen=True):
    """Have jobs take their keys again that a person puts back into their queues. The reply says which of them may."""

    kind: ClassVar = {"ask": "keys", "do": "readmit"}
    reply: ClassVar = reply_of_one("may", list)

    messages: list[Message]


class RemoveJobs(BriefOperation[None], frozen=True):
    """Free the keys of jobs that are about to be removed, unless they run: pairs of a key and an id."""

    kind: ClassVar = {"ask": "keys", "do": "gone"}

    jobs: list[tuple[str, str]]


class CancelJobs(BriefOperation[None], frozen=True):
    """Free the keys of cancelled jobs, unless they run."""

    kind: ClassVar = {"ask": "keys", "do": "cancelled"}

    ids: list[str]


class FreeKeys(BriefOperation[list[str]], frozen=True):
    """Take these keys from their holders. The reply is the keys that there were."""

    kind: ClassVar = {"ask": "keys", "do": "free"}
    reply: ClassVar = reply_of_one("freed", list)

    names: list[str]


class EmptyQueue(BriefOperation[int | None], frozen=True):
    """Purge or delete a queue, and free the keys of its jobs. The reply is how many there were; None: no such queue."""

    kind: ClassVar = {"ask": "keys", "do": "empty"}
    reply: ClassVar = reply_of_values(
        lambda count: {"missing": True} if count is None else {"count": count},
        lambda plain: None if plain.get("missing") else int(plain["count"]),
    )

    queue: str
    delete: bool


def _keys_to_plain(page: KeyPage) -> dict[str, Any]:
    return {"keys": [key.to_plain() for key in page.keys], "total": page.total}


def _keys_from_plain(plain: Plain) -> KeyPage:
    return KeyPage(keys=tuple(Key.from_plain(key) for key in plain["keys"]), total=int(plain["total"]))


class ListKeys(BriefOperation[KeyPage], frozen=True):
    """The reply is a page of the keys that have the text, or of the one key with this name if `exact`."""

    kind: ClassVar = {"ask": "keys", "do": "known"}
    reply: ClassVar = reply_of_values(_keys_to_plain, _keys_from_plain)

    text: str
    offset: int
    limit: int
    exact: bool = False


class ListReplaced(BriefOperation[KeyPage], frozen=True):
    """The reply has those of these keys whose jobs run with other arguments than their own.

    Its total is the number of names that the leader has looked at.
    """

    kind: ClassVar = {"ask": "keys", "do": "known"}
    reply: ClassVar = reply_of_values(_keys_to_plain, _keys_from_plain)

    replaced: list[str]


# -- limits


def _permit_to_plain(permit: RunNow | RunLater) -> dict[str, Any]:
    return {"wait": permit.wait} if isinstance(permit, RunNow) else {"at": permit.at, "turn": permit.reserved}


def _permit_from_plain(plain: Plain) -> RunNow | RunLater:
    if "wait" in plain:
        return RunNow(float(plain["wait"]))
    return RunLater(float(plain["at"]), reserved=bool(plain["turn"]))


class RequestPermit(BriefOperation[RunNow | RunLater], frozen=True):
    """Ask for a permit to run a limited job. The reply says when it may run."""

    kind: ClassVar = {"ask": "limits", "do": "ask"}
    reply: ClassVar = reply_of_values(_permit_to_plain, _permit_from_plain)

    demand: LimitDemand
    id: str
    worker: str

    def to_plain(self) -> dict[str, Any]:
        one = self.demand
        demand = {"key": one.key, "limit": one.limit, "rate": one.written, "turn": one.reserved}
        return {**self.kind, **demand, "id": self.id, "worker": self.worker}


class EndRun(BriefOperation[None], frozen=True):
    """Free the permit of a run that has ended. It may be lost: the leader asks the workers what they run."""

    kind: ClassVar = {"ask": "limits", "do": "ended"}

    key: str
    id: str
    worker: str


def _limit_from_plain(plain: Any) -> LimitInfo:
    key, limit, rate, running, waiting = plain
    return LimitInfo(key=str(key), limit=limit, rate=str(rate), running=int(running), waiting=int(waiting))


class ListLimits(BriefOperation[list[LimitInfo]], frozen=True):
    """The reply is all limited keys of which something is known, by name."""

    kind: ClassVar = {"ask": "limits", "do": "known"}
    reply: ClassVar = reply_of_one(
        "keys",
        read=lambda limits: [_limit_from_plain(one) for one in limits],
        write=lambda limits: [[one.key, one.limit, one.rate, one.running, one.waiting] for one in limits],
    )


# -- scheduled and recurring jobs


def _page_to_parts(page: ScheduledPage) -> list[Part]:
    jobs = (Part(None, to_properties(message), message.body) for message in page.messages)
    return [*jobs, Part({"total": page.total})]


def _page_from_parts(parts: Sequence[Part]) -> ScheduledPage:
    jobs = (to_message(p.properties, p.body, taken_from=None) for p in parts if p.properties is not None)
    return ScheduledPage(messages=tuple(jobs), total=int((parts[-1].values or {})["total"]))


class ListScheduled(Operation[ScheduledPage], frozen=True):
    """The reply is a page of the scheduled jobs that the filter names. Each is a part, as it is stored."""

    kind: ClassVar = {"ask": "list"}
    reply: ClassVar = Reply(_page_to_parts, _page_from_parts)

    chosen: ScheduledFilter
    offset: int
    limit: int


class ListingProgress(BriefOperation[tuple[int, int] | None], frozen=True):
    """The reply is how many jobs were read for the ListScheduled under way, and how many are to be; None if none is."""

    kind: ClassVar = {"ask": "list", "do": "progress"}
    reply: ClassVar = reply_of_one(
        "progress", lambda progress: None if progress is None else (progress[0], progress[1])
    )


def _altered_from_plain(plain: Any) -> AlteredJob:
    id, job, queue, run_at = plain
    return AlteredJob(id=id, job=job, queue=queue, run_at=run_at)


class AlterScheduled(Operation[list[AlteredJob]], frozen=True):
    """Cancel, run, move or give up the scheduled jobs that the filter names. The reply is these jobs."""

    kind: ClassVar = {"ask": "alter"}
    reply: ClassVar = reply_of_rows("rows", _altered_from_plain, lambda one: [one.id, one.job, one.queue, one.run_at])

    chosen: ScheduledFilter
    action: str
    #: The instant for "move", in Unix seconds.
    at: float | None
    #: Whether the failed jobs of every queue lie apart.
    apart: bool


class EditScheduled(Operation[list[AlteredJob]], frozen=True):
    """Change the scheduled job with this id. The reply is this job."""

    kind: ClassVar = {"ask": "edit"}
    reply: ClassVar = reply_of_rows("rows", _altered_from_plain, lambda one: [one.id, one.job, one.queue, one.run_at])

    id: str
    edit: JobEdit


class ListRecurring(Operation[list[RecurringEntry]], frozen=True):
    """The reply is all recurring jobs, by name. Each is a part."""

    kind: ClassVar = {"ask": "recurring", "change": None}
    reply: ClassVar = Reply(
        lambda entries: [*(Part({"entry": entry.to_plain()}) for entry in entries), Part({})],
        lambda parts: [RecurringEntry.from_plain(v["entry"]) for p in parts if "entry" in (v := p.values or {})],
    )


class ChangeRecurring(Operation[None], frozen=True):
    """Change a recurring job. Raises NotFound."""

    kind: ClassVar = {"ask": "recurring"}
    errors: ClassVar = {"missing": NotFound}

    change: EntryChange


# -- tenants


class CountTenantJobs(Operation[Mapping[str, int]], frozen=True):
    """The reply is how many jobs wait in the tenants' queues, by job queue."""

    kind: ClassVar = {"ask": "tenants", "queue": None}
    reply: ClassVar = reply_of_one("totals", dict)


class ListTenants(Operation[list[Tenant]], frozen=True):
    """The reply is the tenants of a queue that have jobs in queues of their own."""

    kind: ClassVar = {"ask": "tenants", "queue": "", "hold": False}
    reply: ClassVar = reply_of_rows("rows", Tenant.from_plain)

    queue: str


class ListTenantNames(Operation[list[str]], frozen=True):
    """The reply is the tenants that have a queue of their own beside this one, empty or not."""

    kind: ClassVar = {"ask": "tenants", "queue": "", "names": True}
    reply: ClassVar = reply_of_rows("names", str)

    queue: str


class GiveBackTenantJobs(Operation[None], frozen=True):
    """Give back the jobs of the queue's tenants that the leader holds."""

    kind: ClassVar = {"ask": "tenants", "queue": "", "hold": True}

    queue: str
    #: Whether the leader moves no job of theirs, either, as long as a session locks the tenants' queues.
    still: bool = False


class HasTenantJobs(Operation[bool], frozen=True):
    """The reply is whether jobs of this tenant wait, or may wait, in the tenant's own queue."""

    kind: ClassVar = {"ask": "tenants", "do": "has"}
    reply: ClassVar = reply_of_one("has", bool)

    queue: str
    tenant: str


class PurgeTenants(Operation[int], frozen=True):
    """Purge the queue of one tenant of a job queue, or those of all with None. The reply is how many jobs there were.

    The leader in keys asks for it: their keys are freed before.
    """

    kind: ClassVar = {"ask": "tenants", "do": "purge"}
    reply: ClassVar = reply_of_one("removed", int)

    queue: str
    tenant: str | None


class ClearTenants(Operation[int], frozen=True):
    """Remove the waiting jobs of one tenant of a queue, or of all with None. The reply is how many there were.

    The leader in keys does it: it frees their keys, and asks the leader in tenants to remove them.
    """

    kind: ClassVar = {"ask": "clear tenants"}
    reply: ClassVar = reply_of_one("removed", int)

    queue: str
    tenant: str | None


# -- the leader's side


def from_plain(plain: Plain) -> Operation[Any]:
    """The operation that to_plain wrote. Raises ValueError, and other errors of values that mean nothing."""
    match plain:
        case {"ask": "keys", "do": str()}:
            return _key_operation(plain)
        case {"ask": "limits", "do": str()}:
            return _limit_operation(plain)
        case {"ask": "list", "chosen": dict(chosen), "offset": int(offset), "limit": int(limit)}:
            return ListScheduled(ScheduledFilter.from_plain(chosen), offset, limit)
        case {"ask": "list", "do": "progress"}:
            return ListingProgress()
        case {"ask": "alter", "chosen": dict(chosen), "action": str(action), "at": at}:
            return AlterScheduled(ScheduledFilter.from_plain(chosen), action, at, apart=plain.get("apart") is True)
        case {"ask": "edit", "id": str(id), "edit": dict(edit)}:
            return EditScheduled(id, JobEdit.from_plain(edit))
        case {"ask": "recurring", "change": None}:
            return ListRecurring()
        case {"ask": "recurring", "change": dict(change)}:
            return ChangeRecurring(EntryChange.from_plain(change))
        case {"ask": "tenants", "queue": None}:
            return CountTenantJobs()
        case {"ask": "tenants", "queue": str(queue), "names": True}:
            return ListTenantNames(queue)
        case {"ask": "tenants", "queue": str(queue), "hold": False}:
            return ListTenants(queue)
        case {"ask": "tenants", "queue": str(queue), "hold": True}:
            return GiveBackTenantJobs(queue, still=plain.get("still") is True)
        case {"ask": "tenants", "do": "has", "queue": str(queue), "tenant": str(tenant)}:
            return HasTenantJobs(queue, tenant)
        case {"ask": "tenants", "do": "purge", "queue": str(queue), "tenant": str() | None as tenant}:
            return PurgeTenants(queue, tenant)
        case {"ask": "clear tenants", "queue": str(queue), "tenant": str() | None as tenant}:
            return ClearTenants(queue, tenant)
    raise ValueError("no such operation")


def _key_operation(plain: Plain) -> BriefOperation[Any]:
    match plain:
        case {"do": "sign"}:
            return GiveSign()
        case {"do": "start", "message": dict(parts), "worker": str(worker), "run": str(run), "again": again}:
            extra = {name: parts[name] for name in (UNIQUE, UNIQUE_KEY, LINGER) if name in parts}
            message = Message(extra=extra, **{name: parts[name] for name in _START_PARTS})
            return StartJob(message, worker, run, again=bool(again))
        case {"do": "enqueue", "claims": list(claims)}:
            return EnqueueUnique([KeyRequest.from_plain(claim) for claim in claims])
        case {"do": "readmit", "messages": list(messages)}:
            return ReadmitJobs([message_from_plain(message) for message in messages])
        case {"do": "gone", "jobs": list(jobs)}:
            return RemoveJobs([(str(key), str(id)) for key, id in jobs])
        case {"do": "cancelled", "ids": list(ids)}:
            return CancelJobs([str(id) for id in ids])
        case {"do": "free", "names": list(names)}:
            return FreeKeys([str(name) for name in names])
        case {"do": "empty", "queue": str(queue), "delete": delete}:
            return EmptyQueue(queue, delete=bool(delete))
        case {"do": "known", "text": str(text), "offset": int(offset), "limit": int(limit)}:
            return ListKeys(text, offset, limit, exact=plain.get("exact") is True)
        case {"do": "known", "replaced": list(names)}:
            return ListReplaced([str(name) for name in names])
    raise ValueError("no such operation on keys")


def _limit_operation(plain: Plain) -> BriefOperation[Any]:
    match plain:
        case {"do": "ask", "key": str(key), "id": str(id), "worker": str(worker)}:
            rate, limit = plain.get("rate") or "", plain.get("limit")
            demand = LimitDemand(
                key=key,
                limit=limit if isinstance(limit, int) else None,
                rate=Rate.parse(rate) if rate else None,
                written=str(rate),
                reserved=plain.get("turn") is True,
            )
            return RequestPermit(demand, id, worker)
        case {"do": "ended", "key": str(key), "id": str(id), "worker": str(worker)}:
            return EndRun(key, id, worker)
        case {"do": "known"}:
            return ListLimits()
    raise ValueError("no such operation on limits")
