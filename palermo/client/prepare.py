"""Prepares jobs and events for publishing: messages, ids, unique keys and batches."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from palermo.client.handle import Conflict, Job
from palermo.client.job_message import JobCall, build_message, call_of, call_option
from palermo.contract import clock
from palermo.contract.serialization import SIGNED, Serializers
from palermo.contract.unique_jobs import KEYED_BY, UniqueJob
from palermo.core.arguments import check_arguments
from palermo.core.message import Message
from palermo.core.text import count
from palermo.core.times import due_at
from palermo.core.topics import Event, check_topic
from palermo.core.topology import check_id
from palermo.core.unique_keys import KeyRequest, Mode, UniqueLock, with_burst_key, with_lock
from palermo.core.unique_rules import DEBOUNCE, RAISE, REPLACE, RERUN, RETURN, THROTTLE, EnqueueAnswer, EnqueueOutcome
from palermo.errors import ArgumentsInvalid, DuplicateJob, OptionInvalid, SerializationError
from palermo.jobs import hooks, registry
from palermo.jobs.current import parent_header
from palermo.jobs.definition import JobDefinition, check_batched
from palermo.jobs.options import ENQUEUE_OPTIONS, PUBLISH_OPTIONS, read_options

if TYPE_CHECKING:
    from palermo.client.io_thread import IoThread
    from palermo.client.sender import Publish
    from palermo.client.status import JobClient
    from palermo.tracing import Enqueuing

#: Limits of a batch in enqueue_many, in jobs and bytes. They bound memory, let each batch finish within
#: publish_timeout, and keep the broker busy while the next batch is prepared.
BATCH, BATCH_BYTES = 500, 524_288

_CALLABLE = frozenset(ENQUEUE_OPTIONS)


def new_id() -> str:
    """Return a random UUID (RFC 9562, version 4) as text: 122 bits from the system's random source.

    Like `uuid.uuid4` at a third of the cost. Keeps no state that a forked child could reuse.
    """
    digits = os.urandom(16).hex()
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


class Prepared(NamedTuple):
    """A call that is ready to publish. It has no message if a hook rejected it."""

    job: Job
    message: Message | None
    #: None for a message that was built elsewhere.
    call: JobCall | None = None
    #: The request to the broker if the job has a unique key.
    key_request: KeyRequest | None = None

    @property
    def parts(self) -> tuple[Message | tuple[()], tuple[KeyRequest, ...]]:
        if self.key_request is not None:
            return (), (self.key_request,)
        return self.message or (), ()

    def handle(self, answers: Iterator[EnqueueAnswer]) -> Job:
        """Return the handle of the stored job. A job with a key request takes the next of the `answers`.

        Runs the after_enqueue hooks of an enqueued job. Raises DuplicateJob if the job's options ask for that.
        """
        job, request = self.job, self.key_request
        if request is not None:
            answer = next(answers)
            if answer.outcome is EnqueueOutcome.DUPLICATE and request.on_duplicate == RAISE:
                raise DuplicateJob(
                    f"job {answer.id} has the key {request.key!r} and is {answer.state}; nothing was enqueued.",
                    id=answer.id,
                    state=answer.state,
                )
            if (conflict := _conflict(answer)) is not None:
                job = replace(job, conflict=conflict)
                if conflict.outcome != "displaced":
                    job = replace(job, id=conflict.id, enqueued=conflict.outcome == "replaced", created_at=None)
        if job.enqueued and self.call is not None and self.call.definition is not None:
            for hook in hooks.hooks_for("after_enqueue", self.call.definition):
                hook(*self.call.args, **self.call.kwargs)
        return job


def _conflict(answer: EnqueueAnswer) -> Conflict | None:
    """Return the other job that held the key, for the handle."""
    match answer.outcome:
        case EnqueueOutcome.DUPLICATE:
            return Conflict("returned", answer.id, answer.state)
        case EnqueueOutcome.REPLACED:
            return Conflict("replaced", answer.id, answer.state)
        case _ if answer.displaced:
            return Conflict("displaced", answer.displaced, "waiting")
        case _:
            return None


def prepare(
    client: "JobClient",
    job: JobDefinition | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
    span: "Enqueuing | None",
    drawn: str = "",
) -> Prepared:
    """Bind the arguments of a call, run its before_enqueue hooks, and encode it.

    `drawn` is an id that the caller got from `new_id`. Raises OptionInvalid, ArgumentsInvalid, SerializationError and
    the errors of hooks.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if given or not options.keys() <= _CALLABLE:
        given = read_options(options, ENQUEUE_OPTIONS, "enqueue")
    if args.__class__ is not tuple or kwargs.__class__ is not dict:
        check_arguments(args, kwargs)
    call = call_of(client.settings, job, args, kwargs, client.unique_job)
    definition, queue, declared = call.definition, call.queue, call.declared
    if given and definition is not None and definition.batch is not None:
        check_batched(call.name, options)
    # The options of this call over those declared by the job; most jobs have none.
    chosen = {**declared, **given} if given else declared
    run_at = None
    if chosen:
        # An invalid instant must raise before the hooks run, because they may have side effects.
        run_at = due_at(
            clock.now(), delay=given.get("delay"), run_at=given.get("run_at"), declared=declared.get("delay")
        )
        queue = chosen.get("queue", queue)
    id = given.get("id") or drawn or new_id()
    if definition is not None and not hooks.run_before_hooks("before_enqueue", definition, call.args, call.kwargs):
        return Prepared(Job(id, queue, call.name, enqueued=False, _client=client), None)
    now = clock.now()
    message = build_message(client, call, chosen, id=id, queue=queue, now=now, run_at=run_at, extra=parent_header())
    if span is not None:
        message = span.traced(message)
    keep_result, key_request = chosen.get("keep_result"), None
    if chosen:
        message, key_request = with_unique_key(message, call, chosen, client.serializers, id=given.get("id") or "")
    # If the code isn't imported here, the worker's declaration decides.
    keeps = keep_result if definition is None else bool(keep_result)
    # Keyword arguments would take half as long again.
    handle = Job(id, queue, call.name, True, None, message.created_at, keeps, client)
    return Prepared(handle, message, call, key_request)


def prepare_event(
    client: "JobClient", topic: str, payload: Any, options: dict[str, Any], span: "Enqueuing | None"
) -> Event:
    """Prepare an event for `Events.publish`. Raises TopicInvalid, OptionInvalid, IdInvalid, EncodeError."""
    check_topic(topic)
    given = read_options(options, PUBLISH_OPTIONS, "publish")
    id = check_id(given.get("id") or new_id())
    call = JobCall(topic, None, None, "", {}, (payload,), {}, ((payload,), {}), one=True)
    extra = {**parent_header(), "topic": topic}
    message = build_message(client, call, given, id=id, queue="", now=clock.now(), extra=extra)
    message = msgspec.structs.replace(message, job="")
    return Event(topic, message if span is None else span.traced(message))


class ManyJobs:
    """The jobs of one enqueue_many. While one batch is being stored, the next is prepared."""

    def __init__(self, io: "IoThread") -> None:
        self._io = io
        self._made: list[Job] = []
        #: The batch that is being stored, if any. Each job has its position in `_made`.
        self._sent: tuple[Publish, list[tuple[int, Prepared]]] | None = None
        #: Number of jobs that are certainly stored.
        self._stored = 0

    def store(self, calls: Iterable[Prepared]) -> list[Job]:
        """Store the jobs and return their handles. A note on an error says how many are certainly stored."""
        try:
            for batch in self._batches(calls):
                self._wait()
                self._send(batch)
            self._wait()
        except BaseException as error:
            self._end(error)
            raise
        return self._made

    def _batches(self, calls: Iterable[Prepared]) -> Iterator[list[tuple[int, Prepared]]]:
        """Yield the calls in batches, without those rejected by a hook.

        If a call raises an error, the calls before it still form a batch.
        """
        batch: list[tuple[int, Prepared]] = []
        size = 0
        try:
            for each in calls:
                self._made.append(each.job)
                if each.message is None:
                    continue
                batch.append((len(self._made) - 1, each))
                size += len(each.message.body)
                if len(batch) >= BATCH or size >= BATCH_BYTES:
                    yield batch
                    batch, size = [], 0
        except Exception:
            if batch:
                yield batch
            raise
        if batch:
            yield batch

    def _send(self, batch: list[tuple[int, Prepared]]) -> None:
        plain = [each.message for _, each in batch if each.message is not None and each.key_request is None]
        key_requests = [each.key_request for _, each in batch if each.key_request is not None]
        self._sent = self._io.send(plain, key_requests=key_requests), batch

    def _wait(self) -> None:
        """Wait until the batch is stored, and run its hooks. Raises its error."""
        if self._sent is None:
            return
        (publish, batch), self._sent = self._sent, None
        try:
            self._io.wait(publish)
        finally:
            self._stored += publish.confirmed + len(publish.stored)
        answers = iter(publish.answers or ())
        for position, prepared in batch:
            self._made[position] = prepared.handle(answers)

    def _end(self, error: BaseException) -> None:
        """Wait for the batch unless interrupted, then note on the error how many jobs are stored."""
        if isinstance(error, Exception):
            with suppress(Exception):  # the caller gets the first error
                self._wait()
        elif self._sent is not None:
            self._io.abandon(self._sent[0])
        are = "is" if self._stored == 1 else "are"
        error.add_note(f"{count(self._stored, 'job')} of this enqueue_many {are} known to be stored.")


#: Maximum length of a key without the job's name, in bytes. A longer key is replaced by its digest.
_MAX_KEY = 200


def lock_for(call: JobCall, chosen: Mapping[str, Any], serializers: Serializers, *, id: str = "") -> UniqueLock | None:
    """Return the lock for a job with a unique key, or None. `id` is set if the caller chose the job's id.

    Raises OptionInvalid, SerializationError.
    """
    unique, linger = chosen.get("unique"), chosen.get("dedupe")
    if unique is None and linger is None:
        if "unique_key" in chosen or "on_duplicate" in chosen:
            raise OptionInvalid("unique_key and on_duplicate have no effect without unique= or dedupe=.")
        return None
    key = _unique_key(call, chosen, serializers, id=id)
    more = float(linger or 0.0)
    if unique in (Mode.START, Mode.DONE) or unique is None:
        return UniqueLock(key=key, mode=Mode(unique or Mode.DONE), linger=more)
    if linger is not None or chosen.get("on_duplicate") in (REPLACE, RERUN):
        raise OptionInvalid(
            f"unique={unique!r} is a duration, so dedupe and on_duplicate {REPLACE!r} or {RERUN!r} cannot be used."
            ' Use unique="until_done" or "until_start".'
        )
    return UniqueLock(key=key, mode=Mode.WINDOW, seconds=unique)


def with_unique_key(
    message: Message, call: JobCall, chosen: Mapping[str, Any], serializers: Serializers, *, id: str = ""
) -> tuple[Message, KeyRequest | None]:
    """Return the message with its key, and the key request, or None if it has no key."""
    bursts = [name for name in (DEBOUNCE, THROTTLE) if name in chosen]
    if not bursts:
        lock = lock_for(call, chosen, serializers, id=id)
        if lock is None:
            return message, None
        on_duplicate = chosen.get("on_duplicate", RETURN)
        if on_duplicate == REPLACE and message.content_type == SIGNED:
            raise OptionInvalid(
                "on_duplicate='replace' cannot be combined with sign, because a signature covers id and arguments."
            )
        message = with_lock(message, lock)
        return message, KeyRequest(key=lock.key, message=message, call=new_id(), on_duplicate=on_duplicate)
    burst, *others = bursts
    others = [name for name in ("unique", "dedupe", "on_duplicate") if name in chosen] + others
    others += ["delay or run_at"] if message.run_at is not None else []
    if others:
        raise OptionInvalid(f"{burst} cannot be combined with {others[0]}.")
    own = "unique_key" in chosen or (call.announced is not None and call.announced.keyed_by_code)
    # The arguments within a burst differ, so without a key the burst consists of all enqueues of the job.
    key = f"{burst}:{_unique_key(call, chosen, serializers) if own else call.name}"
    message = with_burst_key(message, key)
    return message, KeyRequest(key=key, message=message, call=new_id(), spread=burst, seconds=chosen[burst])


def plain_note(
    job: str,
    options: Mapping[str, Any],
    announced: Callable[[str], UniqueJob | None],
    served: Callable[[str], bool],
    queue: str,
) -> str:
    """Return a warning about a job whose code and options are unknown, or "" if its uniqueness is known.

    Workers announce unique jobs before they take any, so `served` says whether an announcement would exist.
    """
    if registry.find(job) or announced(job) or served(queue) or any(options.get(name) is not None for name in KEYED_BY):
        return ""
    return f"the code of {job} is not imported here, so if the job is declared unique, that has no effect on this one."


def _unique_key(call: JobCall, chosen: Mapping[str, Any], serializers: Serializers, *, id: str = "") -> str:
    """Return the full key: the caller's own id, or the job's name with the given key or a digest of the arguments."""
    name, given, announced = call.name, chosen.get("unique_key"), call.announced
    if announced and given is None and (announced.keyed_by_code or (announced.parameters is None and not id)):
        made = "by a function" if announced.keyed_by_code else "from a default value in the code"
        raise OptionInvalid(
            f"job {name!r} was not enqueued: its unique key is computed {made}, but this program has not imported the"
            " code. Import it (PALERMO_IMPORTS), or give the key as text (unique_key, --unique-key)."
        )
    if given is None and id:
        return f"id:{id}"
    if callable(given):
        given = call_option("unique_key", given, call)
        if not isinstance(given, str) or not given:
            raise OptionInvalid(f"the unique_key function of job {name!r} returned {given!r}; it must return text.")
    if given is None:
        return f"{name}:{_digest(call, serializers)}"
    try:
        written = given.encode()
    except UnicodeEncodeError:
        raise OptionInvalid(f"unique_key={given!r} of job {name!r} cannot be encoded as UTF-8.") from None
    return f"{name}:{given}" if len(written) <= _MAX_KEY else f"{name}:{_hashed(written)}"


def _digest(call: JobCall, serializers: Serializers) -> str:
    """Return a digest of the bound arguments, which is the same for positional and keyword arguments."""
    args, kwargs = call.args, call.kwargs
    job = call.definition or call.announced
    if job is not None and (signature := job.signature) is not None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentsInvalid(
                f"wrong arguments for job {call.name!r}: {error}. Its parameters are {signature}."
            ) from None
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    if call.definition is not None:
        args, kwargs = call.definition.written(args, kwargs)
    try:
        body = serializers.encode(args, kwargs, job="", id="", serializer="json").body
    except SerializationError as error:
        raise OptionInvalid(
            f"the arguments cannot be compared, because they are not valid JSON ({error}). Give unique_key=."
        ) from error
    return _hashed(json.dumps(json.loads(body, object_hook=_ordered), sort_keys=True).encode())


def _ordered(value: dict[str, Any]) -> dict[str, Any]:
    """Sort the members of a set, whose order differs between processes, and the pairs of a tagged dict."""
    if value.get("$palermo") not in ("set", "frozenset", "dict"):
        return value
    return {**value, "value": sorted(value["value"], key=partial(json.dumps, sort_keys=True))}


def _hashed(text: bytes) -> str:
    import hashlib

    return hashlib.sha256(text).hexdigest()[:32]
