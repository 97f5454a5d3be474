"""Removes waiting jobs from their queue by name and arguments, like Resque's `dequeue`."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from palermo.client.actor import Actor, record_action
from palermo.contract.broker import Broker
from palermo.contract.rows import arguments_of
from palermo.contract.serialization import Serializers
from palermo.contract.sweep import Keep, Remove, SweepDecision, SweepProgress
from palermo.core.arguments import unpack
from palermo.core.message import Message
from palermo.core.topology import check_job_queue
from palermo.jobs import hooks, registry
from palermo.jobs.definition import JobDefinition
from palermo.settings.settings import Settings

if TYPE_CHECKING:
    from palermo.client.client import Client

#: Runs a request with the client's session, like `Client.run`.
Ask = Callable[[Callable[[Broker], Coroutine[Any, Any, SweepProgress]]], SweepProgress]


def dequeue(
    client: "Client",
    job: Any,
    args: Sequence[object] | None,
    kwargs: Mapping[str, object] | None,
    *,
    actor: Actor,
    ask: Ask,
    queue: str | None = None,
    progress: Callable[[SweepProgress], None] | None = None,
) -> int:
    """Remove these jobs from their queue, run the dequeue hooks, and record the action. Returns the number removed.

    See inspector.jobs.dequeue.
    """
    definition = registry.find(job) if isinstance(job, str) else getattr(job, "definition", job)
    name = job if definition is None else definition.name
    if definition is not None and not hooks.run_before_hooks("before_dequeue", definition, args or (), kwargs or {}):
        return 0
    place = check_job_queue(queue or queue_of(client.settings, name))
    fits = _fitting(client, name, definition, args, kwargs)
    swept = SweepProgress(total=0)

    def note(now: SweepProgress) -> None:
        nonlocal swept
        swept = now
        if progress is not None:
            progress(now)

    try:
        swept = ask(lambda broker: broker.sweep(place, lambda one: Remove() if fits(one) else Keep(), progress=note))
    finally:
        record_action(client, actor, "dequeue", queue=place, count=swept.removed, what=name)
    if definition is not None:
        for hook in hooks.hooks_for("after_dequeue", definition):
            hook(*(args or ()), **(kwargs or {}))
    return swept.removed


def count(
    client: "Client",
    job: str,
    args: Sequence[object] | None,
    kwargs: Mapping[str, object] | None,
    *,
    ask: Ask,
    queue: str | None = None,
) -> int:
    """Count the jobs that `dequeue` would remove."""
    place = check_job_queue(queue or queue_of(client.settings, job))
    fits = _fitting(client, job, registry.find(job), args, kwargs)
    found: list[bool] = []

    def look(message: Message) -> SweepDecision:
        found.append(fits(message))
        return Keep()

    ask(lambda broker: broker.sweep(place, look))
    return sum(found)


def queue_of(settings: Settings, job: str) -> str:
    """Return a job's declared queue if its code is imported here, otherwise the default queue."""
    definition = registry.find(job)
    return settings.default_queue if definition is None else definition.queue_in(settings)


class SameArguments:
    """A predicate for messages with exactly these arguments.

    Arguments are compared in their decoded form, where 1 differs from True but a tuple equals a list. Pickled arguments
    never match, because decoding them would run untrusted code.

    Raises EncodeError if the arguments can't be serialized.
    """

    def __init__(
        self,
        job: str,
        args: Sequence[object] | None,
        kwargs: Mapping[str, object] | None,
        *,
        serializers: Serializers,
    ) -> None:
        self._serializers = serializers
        # Encode and decode them, so that dataclasses and enums are in the same form as in messages.
        encoded = serializers.encode(args or (), kwargs or {}, job=job, id="-")
        probe = Message(id="-", queue="-", job=job, body=encoded.body, content_type=encoded.content_type)
        self._wanted: tuple[list[object], dict[str, object]] = unpack(
            serializers.decode_for_display(probe), encoded.arguments
        )

    def __call__(self, message: Message, *, one: bool) -> bool:
        """`one` is for jobs declared with arguments="one", whose body is their only argument."""
        found = arguments_of(message, self._serializers, one=one)
        return found is not None and _same(found[0], self._wanted[0]) and _same(found[1], self._wanted[1])


def _fitting(
    client: "Client",
    job: str,
    definition: JobDefinition | None,
    args: Sequence[object] | None,
    kwargs: Mapping[str, object] | None,
) -> Callable[[Message], bool]:
    """Return a predicate for messages of this job, with these arguments if any are given.

    Raises EncodeError if the arguments can't be serialized.
    """
    if args is None and kwargs is None:
        return lambda message: message.job == job
    if definition is not None:
        args, kwargs = definition.written(args or (), kwargs or {})
    same = SameArguments(job, args, kwargs, serializers=client.serializers)
    return lambda message: message.job == job and same(message, one=definition is not None and definition.one)


def _same(left: object, right: object) -> bool:
    match left, right:
        case bool(), _:
            return left is right
        case _, bool():
            return False
        case ((list() | tuple()), (list() | tuple())):
            return len(left) == len(right) and all(map(_same, left, right))
        case dict(), dict():
            return left.keys() == right.keys() and all(_same(value, right[key]) for key, value in left.items())
        case float(), float() if left != left:  # NaN isn't equal to itself
            return right != right
        case _:
            return left == right
