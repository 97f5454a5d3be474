"""From a job's options to the key that it needs, and what an enqueue asks for it."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palermo.core.keys import Claim, Lock, Mode, locked
from palermo.core.message import Message
from palermo.core.unique import DEBOUNCE, RAISE, REPLACE, RERUN, RETURN, THROTTLE, Answer, Outcome
from palermo.errors import DuplicateJob, OptionInvalid, SerializationError
from palermo.handles import Job
from palermo.ids import new_id
from palermo.registry import JobDefinition
from palermo.serialization import Serializers

#: Bytes that a key may have beside its job's name; longer ones are told apart by a digest.
_MAX_KEY = 200

#: What an option says, or the job's declaration.
Chosen = Callable[[str], Any]


def lock_for(
    chosen: Chosen,
    serializers: Serializers,
    job: JobDefinition | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    id: str = "",
) -> Lock | None:
    """The key that a job needs, None if none; `id` is the caller's own.

    Raises OptionInvalid, SerializationError, and what a function for the key raises.
    """
    unique, linger = chosen("unique"), chosen("dedupe")
    if unique is None and linger is None:
        if chosen("unique_key") is not None or chosen("on_duplicate") is not None:
            raise OptionInvalid("unique_key and on_duplicate say nothing without unique= or dedupe=.")
        return None
    key = _key(chosen, serializers, job, args, kwargs, id=id)
    more = float(linger or 0.0)
    if unique in (Mode.START, Mode.DONE) or unique is None:
        return Lock(key=key, mode=Mode(unique or Mode.DONE), linger=more)
    if linger is not None or chosen("on_duplicate") in (REPLACE, RERUN):
        raise OptionInvalid(
            f"unique={unique!r} lasts so many seconds, whatever becomes of the job: dedupe and on_duplicate"
            f' {REPLACE!r} or {RERUN!r} need unique="until_done" or "until_start".'
        )
    return Lock(key=key, mode=Mode.WINDOW, seconds=float(unique))


def claimed(
    message: Message,
    chosen: Chosen,
    serializers: Serializers,
    job: JobDefinition | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    id: str = "",
    signed: bool = False,
) -> tuple[Message, Claim | None]:
    """The message with what it says of its key, and what is asked of the broker for it; None for a plain publish."""
    debounce, throttle = chosen("debounce"), chosen("throttle")
    if debounce is None and throttle is None:
        lock = lock_for(chosen, serializers, job, args, kwargs, id=id)
        if lock is None:
            return message, None
        on_duplicate = chosen("on_duplicate") or RETURN
        if on_duplicate == REPLACE and signed:
            raise OptionInvalid("on_duplicate='replace' does not go with sign: a signature covers id and arguments.")
        message = locked(message, lock)
        return message, Claim(key=lock.key, message=message, call=new_id(), on_duplicate=on_duplicate)
    names = [name for name in ("unique", "dedupe", "on_duplicate") if chosen(name) is not None]
    names += ["throttle"] if debounce is not None and throttle is not None else []
    names += ["delay or run_at"] if message.run_at is not None else []
    if names:
        raise OptionInvalid(f"{'debounce' if debounce is not None else 'throttle'} does not go with {names[0]}.")
    spread, seconds = (DEBOUNCE, debounce) if debounce is not None else (THROTTLE, throttle)
    name = job if isinstance(job, str) else job.name
    own = chosen("unique_key") is not None
    # Of a burst the arguments differ: without a key it is all of the job's.
    key = f"{spread}:{_key(chosen, serializers, job, args, kwargs) if own else name}"
    return message, Claim(key=key, message=message, call=new_id(), spread=spread, seconds=float(seconds))


def answered(job: Job, claim: Claim, answer: Answer) -> Job:
    """The handle of what stands for an enqueue. Raises DuplicateJob where that was asked for."""
    match answer.outcome:
        case Outcome.DUPLICATE:
            if claim.on_duplicate == RAISE:
                raise DuplicateJob(
                    f"job {answer.id} has the key {claim.key!r} and is {answer.state}; nothing was enqueued.",
                    id=answer.id,
                    state=answer.state,
                )
            return job.as_duplicate(answer.id, answer.state, enqueued=False)
        case Outcome.REPLACED:
            return job.as_duplicate(answer.id, answer.state, enqueued=True)
    return job


def _key(
    chosen: Chosen,
    serializers: Serializers,
    job: JobDefinition | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    id: str = "",
) -> str:
    """The whole key: the job's name and what is given for it, the caller's own id, or a digest of the arguments."""
    name = job if isinstance(job, str) else job.name
    given = chosen("unique_key")
    if given is None and id:
        return f"id:{id}"
    if callable(given):
        given = given(*args, **kwargs)
        if not isinstance(given, str) or not given:
            raise OptionInvalid(f"the function for the key of job {name!r} gave {given!r}; it must give text.")
    if given is None:
        return f"{name}:{_digest(serializers, job, args, kwargs)}"
    return f"{name}:{given}" if len(given.encode()) <= _MAX_KEY else f"{name}:{_hashed(given.encode())}"


def _digest(serializers: Serializers, job: JobDefinition | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The same for the same arguments, however they are given."""
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
