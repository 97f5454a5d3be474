"""The jobs waiting on a broker, for a test's assertions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from palermo.client.client import Client
from palermo.contract import clock
from palermo.contract.broker import Broker
from palermo.contract.scheduled import ScheduledFilter
from palermo.contract.serialization import Accept
from palermo.core import arguments
from palermo.core.message import Message
from palermo.core.topology import is_failed
from palermo.errors import PalermoError
from palermo.jobs import registry
from palermo.jobs.definition import JobDefinition

#: A limit that no test reaches.
_ALL = 2**31

#: Maximum number of jobs listed in a message.
_SHOWN = 20

#: A job: a decorated function or class, its definition, or its wire name.
AnyJob = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedJob:
    """A job that is waiting in its queue, for its time, for a retry or for a unique key."""

    id: str
    #: Its wire name.
    job: str
    queue: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    #: When it is due; None if immediately.
    run_at: datetime | None = None
    #: The number of its next run: 1, or more if it is waiting for a retry.
    attempt: int = 1
    #: Its tenant, or "".
    tenant: str = ""
    priority: int = 0
    message: Message = field(repr=False)

    def __str__(self) -> str:
        shown = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        due = ""
        if self.run_at is not None and (wait := self.run_at.timestamp() - clock.now()) > 0:
            due = f", due in {wait:.0f} s"
        tenant = f", tenant {self.tenant}" if self.tenant else ""
        run = f", run {self.attempt}" if self.attempt > 1 else ""
        return f"{self.job}({', '.join(shown)}) in queue {self.queue}{due}{tenant}{run}"


async def waiting_messages(broker: Broker) -> list[Message]:
    """Return the messages of all waiting jobs that aren't cancelled: by queue, followed by scheduled ones."""
    found: list[Message] = []
    for queue in await broker.queues():
        if is_failed(queue.name):
            continue
        page = await broker.browse(queue.name, limit=_ALL)
        found += (one for one in page.messages if one.id not in page.cancelled)
    later = await broker.scheduled(ScheduledFilter(), limit=_ALL)
    found += (one for one in later.messages if one.id not in later.cancelled)
    # Debounced and throttled jobs, and jobs waiting for a key, are stored with the key.
    for key in await broker.keys.known():
        if key.next is not None:
            found.append(replace(key.next.message, run_at=key.due))
    return found


class Enqueued:
    """Finds waiting jobs by name and arguments."""

    def __init__(self, client: Client, accept: Accept) -> None:
        self._client = client
        self._accept = accept

    def all(self) -> list[EnqueuedJob]:
        """Return all waiting jobs."""
        return [self._job(message) for message in self._client.run(waiting_messages)]

    def find(self, job: AnyJob, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[EnqueuedJob]:
        """Return the waiting jobs with this name and, if any are given, these arguments. Raises ArgumentsInvalid."""
        name, definition = named(job)
        same_name = [one for one in self.all() if one.job == name]
        if not args and not kwargs:
            return same_name
        wanted = self._wanted(name, definition, args, kwargs)
        return [one for one in same_name if _call(definition, one.args, one.kwargs) in wanted]

    def _wanted(
        self, name: str, definition: JobDefinition | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """Return the call in two forms: with the given arguments, and with these arguments after encoding and
        decoding.
        """
        if definition is not None:
            definition.bind(args, kwargs)
        wanted = [_call(definition, args, kwargs)]
        try:
            if definition is not None:
                args, kwargs = definition.written(args, kwargs)
            settings, one = self._client.settings, definition is not None and definition.one
            encoded = self._client.serializers.encode(
                args,
                kwargs,
                job=name,
                id="expected",
                serializer=(definition.serializer if definition else None) or settings.serializer,
                compression="",
                sign=False,
                one=one,
            )
            message = Message(
                id="expected",
                queue="",
                job=name,
                body=encoded.body,
                content_type=encoded.content_type,
                content_encoding=encoded.content_encoding,
                arguments=encoded.arguments,
            )
            wanted.append(_call(definition, *self._arguments(message, definition)))
        except PalermoError:  # for example unittest.mock.ANY, which no serializer can write
            pass
        return wanted

    def _job(self, message: Message) -> EnqueuedJob:
        try:
            args, kwargs = self._arguments(message, registry.find(message.job))
        except PalermoError as error:  # the worker will report the same error
            args, kwargs = [f"<{error}>"], {}
        return EnqueuedJob(
            id=message.id,
            job=message.job,
            queue=message.queue,
            args=tuple(args),
            kwargs=kwargs,
            run_at=None if message.run_at is None else datetime.fromtimestamp(message.run_at, UTC),
            attempt=message.attempt,
            tenant=message.tenant,
            priority=message.priority,
            message=message,
        )

    def _arguments(self, message: Message, definition: JobDefinition | None) -> tuple[list[Any], dict[str, Any]]:
        classes = definition.classes if definition is not None else {}
        value = self._client.serializers.decode(message, accept=self._accept, classes=classes)
        args, kwargs = arguments.unpack(value, message.arguments, one=definition is not None and definition.one)
        if definition is not None and definition.models is not None:
            return definition.models.validated(args, kwargs, decoded=True)
        return args, kwargs


def named(job: AnyJob) -> tuple[str, JobDefinition | None]:
    """Return a job's wire name, and its definition if its code is imported here. Raises TypeError for other objects."""
    if isinstance(job, str):
        return job, registry.find(job)
    definition = job if isinstance(job, JobDefinition) else getattr(job, "definition", None)
    if not isinstance(definition, JobDefinition):
        raise TypeError(f"{job!r} isn't a job. Pass a function or class with @palermo.job, or a job's name.")
    return definition.name, definition


def call_text(job: AnyJob, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return a job and its arguments as text for a message. Without arguments, return just the job."""
    if not args and not kwargs:
        return named(job)[0]
    shown = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"{named(job)[0]}({', '.join(shown)})"


def listing(jobs: Sequence[EnqueuedJob]) -> str:
    """Format the jobs for an error message, one per line."""
    lines = [f"  {job}" for job in jobs[:_SHOWN]]
    if len(jobs) > _SHOWN:
        lines.append(f"  and {len(jobs) - _SHOWN:,} more")
    return "\n".join(lines)


def _call(definition: JobDefinition | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the arguments by name, with defaults, so that equal calls compare equal."""
    if definition is None or definition.one:
        return [*args], {**kwargs}
    bound = definition.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)
