"""Unique options of a job: from the options to the key that it needs, and to the request that an enqueue makes."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palermo.client.handle import Job
from palermo.client.ids import new_id
from palermo.contract.serialization import Serializers
from palermo.core.message import Message
from palermo.core.unique_keys import KeyRequest, Mode, UniqueLock, with_lock
from palermo.core.unique_rules import DEBOUNCE, RAISE, REPLACE, RERUN, RETURN, THROTTLE, EnqueueAnswer, EnqueueOutcome
from palermo.errors import DuplicateJob, OptionInvalid, SerializationError
from palermo.jobs.definition import JobDefinition
from palermo.jobs.user_modules import describe

#: The greatest length of a key without its job's name, in bytes; a longer key is replaced by its digest.
_MAX_KEY = 200

#: Gives the value of an option by its name: the caller's, or the one that the job declares.
GetOption = Callable[[str], Any]


def lock_for(
    chosen: GetOption,
    serializers: Serializers,
    job: JobDefinition | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    id: str = "",
) -> UniqueLock | None:
    """The key that a job needs; None if it needs none. `id` is the job's id if the caller chose it.

    Raises OptionInvalid, SerializationError.
    """
    unique, linger = chosen("unique"), chosen("dedupe")
    if unique is None and linger is None:
        if chosen("unique_key") is not None or chosen("on_duplicate") is not None:
            raise OptionInvalid("unique_key and on_duplicate say nothing without unique= or dedupe=.")
        return None
    key = _key(chosen, serializers, job, args, kwargs, id=id)
    more = float(linger or 0.0)
    if unique in (Mode.START, Mode.DONE) or unique is None:
        return UniqueLock(key=key, mode=Mode(unique or Mode.DONE), linger=more)
    if linger is not None or chosen("on_duplicate") in (REPLACE, RERUN):
        raise OptionInvalid(
            f"unique={unique!r} lasts so many seconds, whatever becomes of the job: dedupe and on_duplicate"
            f' {REPLACE!r} or {RERUN!r} need unique="until_done" or "until_start".'
        )
    return UniqueLock(key=key, mode=Mode.WINDOW, seconds=float(unique))


def with_unique_key(
    message: Message,
    chosen: GetOption,
    serializers: Serializers,
    job: JobDefinition | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    id: str = "",
    signed: bool = False,
) -> tuple[Message, KeyRequest | None]:
    """The message with its key, and the request for that key; the request is None for a plain publish."""
    debounce, throttle = chosen("debounce"), chosen("throttle")
    if debounce is None and throttle is None:
        lock = lock_for(chosen, serializers, job, args, kwargs, id=id)
        if lock is None:
            return message, None
        on_duplicate = chosen("on_duplicate") or RETURN
        if on_duplicate == REPLACE and signed:
            raise OptionInvalid("on_duplicate='replace' does not go with sign: a signature covers id and arguments.")
        message = with_lock(message, lock)
        return message, KeyRequest(key=lock.key, message=message, call=new_id(), on_duplicate=on_duplicate)
    names = [name for name in ("unique", "dedupe", "on_duplicate") if chosen(name) is not None]
    names += ["throttle"] if debounce is not None and throttle is not None else []
    names += ["delay or run_at"] if message.run_at is not None else []
    if names:
        raise OptionInvalid(f"{'debounce' if debounce is not None else 'throttle'} does not go with {names[0]}.")
    burst_kind, seconds = (DEBOUNCE, debounce) if debounce is not None else (THROTTLE, throttle)
    name = job if isinstance(job, str) else job.name
    own = chosen("unique_key") is not None
    # The arguments of a burst differ: without a key the burst is made of all enqueues of the job.
    key = f"{burst_kind}:{_key(chosen, serializers, job, args, kwargs) if own else name}"
    return message, KeyRequest(key=key, message=message, call=new_id(), spread=burst_kind, seconds=float(seconds))


def plain_note(job: str, options: Mapping[str, Any]) -> str:
    """A sentence that says what a job without its code is not, for who enqueued it; "" if these options say a key."""
    if any(options.get(name) is not None for name in ("unique", "dedupe", "debounce", "throttle")):
        return ""
    return (
        f"the code of {job} is not imported here, so the job is not unique even if it is declared so: give unique or"
        " dedupe here, or have the code imported."
    )


def handle_for(job: Job, request: KeyRequest, answer: EnqueueAnswer) -> Job:
    """The handle of the job that stands for an enqueue. Raises DuplicateJob if the caller asked for that."""
    match answer.outcome:
        case EnqueueOutcome.DUPLICATE:
            if request.on_duplicate == RAISE:
                raise DuplicateJob(
                    f"job {answer.id} has the key {request.key!r} and is {answer.state}; nothing was enqueued.",
                    id=answer.id,
                    state=answer.state,
                )
            return job.as_duplicate(answer.id, answer.state, enqueued=False)
        case EnqueueOutcome.REPLACED:
            return job.as_duplicate(answer.id, answer.state, enqueued=True)
    return job


def _key(
    chosen: GetOption,
    serializers: Serializers,
    job: JobDefinition | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    id: str = "",
) -> str:
    """The whole key: the caller's own id, or the job's name with the given key or with a digest of the arguments."""
    name = job if isinstance(job, str) else job.name
    given = chosen("unique_key")
    if given is None and id:
        return f"id:{id}"
    if callable(given):
        given = call_option("unique_key", given, name, args, kwargs)
        if not isinstance(given, str) or not given:
            raise OptionInvalid(f"the function for the key of job {name!r} gave {given!r}; it must give text.")
    if given is None:
        return f"{name}:{_digest(serializers, job, args, kwargs)}"
    try:
        written = given.encode()
    except UnicodeEncodeError:
        raise OptionInvalid(f"unique_key={given!r} of job {name!r} cannot be written as UTF-8.") from None
    return f"{name}:{given}" if len(written) <= _MAX_KEY else f"{name}:{_hashed(written)}"


def call_option(
    option: str, function: Callable[..., Any], job: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """What the function gives that this option of a job is, for the job's arguments.

    Raises OptionInvalid, with the function's error as its cause.
    """
    try:
        return function(*args, **kwargs)
    except Exception as error:  # the user's function may raise anything
        raise OptionInvalid(f"the function given as {option} of job {job!r} raised {describe(error)}.") from error


def _digest(serializers: Serializers, job: JobDefinition | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A digest that is the same for the same arguments, however they are given."""
    if isinstance(job, JobDefinition):
        bound = job.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = bound.args, bound.kwargs
    try:
        body = serializers.encode(args, kwargs, job="", id="", serializer="json").body
    except SerializationError as error:
        raise OptionInvalid(
            f"the arguments cannot be told apart, since they cannot be written as JSON ({error}). Give unique_key=."
        ) from error
    return _hashed(json.dumps(json.loads(body), sort_keys=True).encode())


def _hashed(text: bytes) -> str:
    import hashlib

    return hashlib.sha256(text).hexdigest()[:32]
