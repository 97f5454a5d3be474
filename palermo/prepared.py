"""Calls on their way to the broker: made ready one by one, stored in batches."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from palermo import hooks
from palermo.claiming import answered, claimed
from palermo.core.keys import Claim
from palermo.core.message import NO_HEADERS, Message, made
from palermo.core.permits import asking, check_key
from palermo.core.preview import preview
from palermo.core.shares import is_tenant
from palermo.core.unique import Answer
from palermo.errand import Errand
from palermo.errors import OptionInvalid
from palermo.ids import new_id
from palermo.io_thread import IoThread
from palermo.jobs import Job, registry
from palermo.moments import due
from palermo.options import CALLABLE, check_options
from palermo.registry import JobDefinition, check_batched, check_job_name
from palermo.serialization import SIGNED

if TYPE_CHECKING:
    from palermo.client import Client

#: enqueue_many publishes in batches of at most this many jobs and bytes, and so many of them are under way at once: so
#: that memory is bounded, each batch has a fair chance within publish_timeout, and the broker has something to do
#: while the next is being made.
BATCH, BATCH_BYTES = 200, 262_144
BATCHES = 5

#: What a job declares whose code is not imported here.
_UNDECLARED: Mapping[str, Any] = MappingProxyType({})

_CALLABLE = frozenset(CALLABLE)

#: What a job may declare that each of its messages tells, beside its queue.
_TOLD = frozenset(CALLABLE) - {"queue", "id", "retries", "run_at"}


class Prepared(NamedTuple):
    """A call that is ready to go; no message if a hook kept it back."""

    job: Job
    message: Message | None
    definition: JobDefinition | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    #: What is asked for a job that needs a key.
    claim: Claim | None = None
    #: Of one with a claim, its place among the jobs of an enqueue_many.
    place: int = 0

    def answered(self, answer: Answer) -> Job:
        """The handle of what came of a claim; the hooks are told if anything did. Raises DuplicateJob."""
        assert self.claim is not None
        job = answered(self.job, self.claim, answer)
        if job.enqueued:
            self.enqueued()
        return job

    def enqueued(self) -> None:
        """It is stored: tell the hooks."""
        if self.definition is not None:
            hooks.notify("after_enqueue", self.definition, self.args, self.kwargs)


def prepare(
    client: "Client",
    job: JobDefinition | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    fresh: Callable[[], str] = new_id,
) -> Prepared:
    """Bind, ask the hooks, encode; `fresh` gives ids.

    Raises OptionInvalid, ArgumentsInvalid, SerializationError and what hooks raise.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if given or not options.keys() <= _CALLABLE:
        check_options(options, CALLABLE, "enqueue")
    settings = client.settings
    definition = registry.find(job) if isinstance(job, str) else job
    if not given and definition is not None and _is_bare(definition):
        return _prepare_bare(client, definition, args, kwargs, fresh)
    if given and definition is not None and definition.batch is not None:
        check_batched(definition.name, options)
    declares = definition.declares if definition is not None else _UNDECLARED
    # An option, or what the job's declaration says.
    chosen = ({**declares, **given} if given else declares).get

    # Before the hooks, which may do things: an instant that is none must not come after them.
    run_at = due(time.time(), delay=given.get("delay"), run_at=given.get("run_at"), declared=declares.get("delay"))
    more: dict[str, Any] = {}
    if definition is None:
        name = check_job_name(job)
    else:
        name = definition.name
        definition.bind(args, kwargs)
        if definition.one:
            more["one"] = True
    tenant, share = _tenant(chosen("tenant"), name, args, kwargs), chosen("share")
    own = settings.default_queue if definition is None else settings.queue_of(definition)
    queue = given.get("queue") or own
    id = given.get("id") or fresh()
    if definition is not None and not hooks.permitted("before_enqueue", definition, args, kwargs):
        return Prepared(Job(id, queue, name, enqueued=False), None, definition, args, kwargs)
    serializer, compression, sign = chosen("serializer"), chosen("compression"), chosen("sign")
    encoded = client.serializers.encode(
        args,
        kwargs,
        job=name,
        id=id,
        serializer=settings.serializer if serializer is None else serializer,
        compression=settings.compression if compression is None else compression,
        sign=settings.sign if sign is None else sign,
        **more,
    )
    now, timeout, expires, keep_result = time.time(), chosen("timeout"), chosen("expires"), chosen("keep_result")
    lock_for, priority = chosen("lock_for"), chosen("priority")
    asked = asking(name, chosen("limit"), _key(chosen("limit_key"), args, kwargs), chosen("rate"))
    message = made(
        {
            "id": id,
            "queue": queue,
            "job": name,
            "body": encoded.body,
            "content_type": encoded.content_type,
            "content_encoding": encoded.content_encoding,
            "arguments": encoded.arguments,
            "created_at": int(now),
            "queued_at": now,
            "preview": preview(args, kwargs),
            "timeout": None if timeout is None else float(timeout),
            "lock_for": None if lock_for is None else float(lock_for),
            "properties": {"priority": priority} if priority else NO_HEADERS,
            "extra": asked or NO_HEADERS,
            "expires_at": None if expires is None else (run_at or now) + expires,
            "run_at": run_at,
            "max_retries": given.get("retries"),
            "keep_result": keep_result,
            "tenant": tenant,
            "share": float(share) if tenant and share is not None else None,
        }
    )
    # Where the code is not imported here, the worker's declaration may have it kept.
    keeps = keep_result if definition is None else bool(keep_result)
    own_id, is_signed = given.get("id") or "", message.content_type == SIGNED
    message, claim = claimed(
        message,
        chosen,
        client.serializers,
        job if definition is None else definition,
        args,
        kwargs,
        id=own_id,
        signed=is_signed,
    )
    handle = Job(id, queue, name, created_at=message.created_at, keep_result=keeps, _client=client)
    return Prepared(handle, message, definition, args, kwargs, claim)


@lru_cache(maxsize=1_024)
def _is_bare(definition: JobDefinition) -> bool:
    """Whether it declares nothing that a message would tell but the queue."""
    return not definition.one and all(definition.declares[name] is None for name in _TOLD)


def _prepare_bare(
    client: "Client",
    definition: JobDefinition,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    fresh: Callable[[], str],
) -> Prepared:
    """`prepare` for a job of which nothing but its queue is said anywhere, as for most: the same with fewer steps."""
    settings, name = client.settings, definition.name
    definition.bind(args, kwargs)
    queue, id = settings.queue_of(definition), fresh()
    if not hooks.permitted("before_enqueue", definition, args, kwargs):
        return Prepared(Job(id, queue, name, enqueued=False), None, definition, args, kwargs)
    encoded = client.serializers.encode(
        args,
        kwargs,
        job=name,
        id=id,
        serializer=settings.serializer,
        compression=settings.compression,
        sign=settings.sign,
    )
    now = time.time()
    created_at = int(now)
    message = made(
        {
            "id": id,
            "queue": queue,
            "job": name,
            "body": encoded.body,
            "content_type": encoded.content_type,
            "content_encoding": encoded.content_encoding,
            "arguments": encoded.arguments,
            "created_at": created_at,
            "queued_at": now,
            "preview": preview(args, kwargs),
            "properties": NO_HEADERS,
            "extra": NO_HEADERS,
        }
    )
    # By position: as keywords they cost half as much again.
    handle = Job(id, queue, name, True, "", created_at, False, client)
    return Prepared(handle, message, definition, args, kwargs)


def _key(chosen: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """What a job is limited by beside its name; "" for nothing. Raises OptionInvalid, and what the function does."""
    key = chosen(*args, **kwargs) if callable(chosen) else chosen
    return "" if key is None else check_key(key)


def _tenant(chosen: Any, job: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Whose job it is; "" for nobody's. Raises OptionInvalid for what is no name, and what a function raises."""
    if not callable(chosen):
        return str(chosen or "")
    tenant = chosen(*args, **kwargs)
    if tenant is not None and not is_tenant(tenant):
        raise OptionInvalid(
            f"the function that job {job!r} is declared with for its tenant gave {tenant!r}; it must give text of"
            " 1 to 255 bytes without blanks at its ends, or None for nobody."
        )
    return tenant or ""


def batches(prepared: Iterable[Prepared], made: list[Job]) -> Iterator[list[Prepared]]:
    """The calls in batches, without those that a hook kept back; all of them leave their handle in `made`."""
    batch: list[Prepared] = []
    size = 0
    for each in prepared:
        if each.claim is not None:
            each = each._replace(place=len(made))
        made.append(each.job)
        if each.message is None:
            continue
        batch.append(each)
        size += len(each.message.body)
        if len(batch) >= BATCH or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def landed(io: IoThread, waiting: deque[tuple[Errand, list[Prepared]]], made: list[Job]) -> int:
    """Wait for the oldest batch to be stored and tell the hooks; returns how many jobs it held."""
    errand, batch = waiting[0]
    io.wait(errand)
    waiting.popleft()
    answers = iter(errand.answers or ())
    for prepared in batch:
        if prepared.claim is None:
            prepared.enqueued()
        else:
            made[prepared.place] = prepared.answered(next(answers))
    return len(batch)
