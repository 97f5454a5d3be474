"""What becomes of a key when something happens to it: the one rule that both brokers apply.

Pure: a key, what happens, and the time go in; the key after that, the jobs to publish in the same transaction, and
the answer come out. Whoever applies it stores all of that together, or none of it. docs/design.md says who
may ask for what, and in which order with everything else that happens to a job.
"""

from dataclasses import replace
from enum import StrEnum

from palermo.core.keys import Claim, Closed, Ended, Holder, Kept, Key, Mode, Phase, lock_of
from palermo.core.message import Message
from palermo.core.values import dataclass

#: What a second enqueue may do: answer with the first job, raise, put its arguments in the place of those of the
#: first if that waits (else run after it), or have the job run once more after the run that is under way.
RETURN, RAISE, REPLACE, RERUN = ON_DUPLICATE = ("return", "raise", "replace", "rerun")

DEBOUNCE, THROTTLE = SPREADS = ("debounce", "throttle")

#: Seconds for which a job that has ended is remembered, in case that it is handed out once more.
REMEMBERED = 60.0

#: And one that has no key any more, but arguments that are nowhere else.
KEPT_FOR = 7 * 86_400.0

#: How many of them at most.
_MOST_ENDED = 100


class Outcome(StrEnum):
    """What came of an enqueue."""

    STORED = "stored"  #: the job is in its queue
    KEPT = "kept"  #: the arbiter keeps it until its time, in the place of one that it kept before
    DUPLICATE = "duplicate"  #: another job has the key, and nothing was done
    REPLACED = "replaced"  #: the job that waits has these arguments now
    NEXT = "next"  #: the job is published when the present one has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of an enqueue."""

    outcome: Outcome
    #: The job that stands for it: its own, or the one that has the key.
    id: str
    #: Where that one is: waiting, running, or ended.
    state: str = "waiting"
    #: A job that is not run because of this one: the one that a debounce kept before it.
    instead_of: str = ""


class Why(StrEnum):
    """Why a job may be started, or not."""

    RUN = "run"  #: it has the key
    ENDED = "ended"  #: it has ended, and this is a copy of it, or its worker died too early to acknowledge it
    COPY = "copy"  #: another worker runs it from another message, which is not gone
    DUPLICATE = "duplicate"  #: another job has its key


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Whether a job may be started."""

    why: Why
    #: The job that has the key, where that is another.
    holder: str = ""
    #: What its end must name: of which holder it is the run, and which run of that.
    serial: int = 0
    starts: int = 0
    #: Whether its end must be told.
    tell: bool = False
    #: Run with the arguments of this one instead of its own.
    content: Message | None = None


class End(StrEnum):
    """How a run ended, as far as keys are concerned."""

    DONE = "done"
    OVER = "over"  #: failed, discarded or cancelled
    AGAIN = "again"  #: it waits, for its retry or as it did before


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A key after something has happened to it."""

    key: Key
    #: To be published in the same transaction.
    jobs: tuple[Message, ...] = ()


def current(key: Key, now: float) -> Key:
    """The key without what time has taken from it, which nobody has to write down: whoever reads it later sees it."""
    holder, closed = key.holder, key.closed
    if holder is not None and holder.until is not None and holder.until <= now:
        holder = None
    if closed is not None and closed.until <= now:
        closed = None
    ended = key.ended
    if any(one.until <= now for one in ended):
        ended = tuple(one for one in ended if one.until > now)
    if holder is key.holder and closed is key.closed and ended is key.ended:
        return key
    return replace(key, holder=holder, closed=closed, ended=ended)


def enqueue(key: Key, claim: Claim, now: float) -> tuple[Step, Answer]:
    """A job wants to be stored."""
    key = current(key, now)
    known = _asked_before(key, claim)
    if known is not None:
        return Step(key=key), known
    if claim.spread:
        return _spread(key, claim, now)
    holder = key.holder
    if holder is None and key.closed is None:
        kept = Kept(message=claim.message, call=claim.call)
        return _take(key, kept, now), Answer(outcome=Outcome.STORED, id=claim.message.id)
    if holder is None:
        assert key.closed is not None
        return Step(key=key), Answer(outcome=Outcome.DUPLICATE, id=key.closed.id, state="ended")
    duplicate = Answer(outcome=Outcome.DUPLICATE, id=holder.id, state=holder.phase)
    if holder.mode is Mode.WINDOW or claim.on_duplicate in (RETURN, RAISE):
        return Step(key=key), duplicate
    kept = Kept(message=claim.message, call=claim.call)
    if holder.phase is Phase.RUNNING:
        instead_of = "" if key.next is None else key.next.message.id
        answer = Answer(outcome=Outcome.NEXT, id=claim.message.id, instead_of=instead_of)
        return Step(key=replace(key, next=kept)), answer
    if claim.on_duplicate == RERUN:
        return Step(key=key), duplicate
    return Step(key=replace(key, holder=replace(holder, content=kept))), replace(duplicate, outcome=Outcome.REPLACED)


def start(key: Key, message: Message, *, worker: str, run: str, again: bool, now: float) -> tuple[Step, Start]:
    """A worker wants to start a job that was handed to it. `run` tells this run from any other of any job.

    `again` says that the message was handed out before, and that nobody runs the job any more.
    """
    key = current(key, now)
    lock, holder = lock_of(message), key.holder
    if lock is None or not lock.asks:
        return Step(key=key), Start(why=Why.RUN)
    if holder is not None and holder.id == message.id:
        if holder.phase is Phase.RUNNING and holder.run != run and not again:
            return Step(key=key), Start(why=Why.COPY)
        return _started(key, holder, worker, run, now)
    before = next((one for one in key.ended if one.id == message.id), None)
    if before is not None:
        if before.content is None:
            return Step(key=key), Start(why=Why.ENDED)
        return Step(key=key), Start(why=Why.RUN, tell=True, content=before.content.message)
    if lock.mode is Mode.START:
        return Step(key=key), Start(why=Why.RUN)
    if holder is not None:
        return Step(key=key), Start(why=Why.DUPLICATE, holder=holder.id)
    # Nobody has its key: it was freed while the job waited, or another program published it.
    key = _take(key, Kept(message=message, call=""), now).key
    assert key.holder is not None
    return _started(key, key.holder, worker, run, now)


def readmit(key: Key, message: Message, now: float) -> tuple[Step, bool]:
    """A job comes back among those that wait, by a person's hand: the key after that, and whether it may.

    It is published by whoever asks. A window in which enqueues are refused does not keep it away.
    """
    key = current(key, now)
    lock, holder = lock_of(message), key.holder
    if lock is None or not lock.asks:
        return Step(key=key), True
    if holder is not None:
        return Step(key=key), holder.id == message.id
    return replace(_take(key, Kept(message=message, call=""), now), jobs=()), True


def gone(key: Key, id: str, now: float, *, drop_next: bool = False) -> Step:
    """A job that waits is taken away: by a person, or with all of its queue, and then without what was to follow it."""
    holder = key.holder
    if holder is None or holder.id != id or holder.phase is not Phase.WAITING:
        return Step(key=current(key, now))
    return free(key, now=now, drop_next=drop_next)


def end(
    key: Key,
    id: str,
    how: End,
    *,
    serial: int | None,
    now: float,
    run_at: float | None = None,
    starts: int | None = None,
) -> Step:
    """The run of a job has ended, which matters only if that had the key.

    `serial` and `starts` are those of its start, `run_at` is when it runs again, in Unix seconds; None for at once, or
    never. Told again it changes nothing more, even if the job was started again meanwhile, or the key taken.
    """
    key = current(key, now)
    holder = key.holder
    if holder is None or holder.id != id or (serial is not None and serial != holder.serial):
        if how is End.AGAIN:
            return Step(key=key)
        return Step(key=replace(key, ended=tuple(_without_content(one, id, now) for one in key.ended)))
    if starts is not None and starts < holder.starts:
        # It was started again meanwhile, by whoever was given it since nobody knew of this end.
        return Step(key=key)
    if how is End.AGAIN:
        known = max(holder.starts, starts or 0)
        waiting = replace(holder, phase=Phase.WAITING, worker="", run="", run_at=run_at, starts=known)
        return Step(key=replace(key, holder=waiting))
    if holder.mode is Mode.WINDOW and how is End.DONE:
        return Step(key=key)
    ended = Ended(id=id, call=holder.call, until=now + REMEMBERED)
    key = replace(key, holder=None, ended=(*key.ended, ended)[-_MOST_ENDED:])
    if key.next is not None:
        return _publish_next(key, now)
    if how is End.DONE and holder.linger:
        key = replace(key, closed=Closed(until=now + holder.linger, id=id, call=holder.call))
    return Step(key=key)


def free(key: Key, *, now: float, drop_next: bool = False) -> Step:
    """The key is taken from its holder, and what is kept for later is published, or with `drop_next` dropped."""
    key = replace(current(key, now), holder=None, closed=None)
    if drop_next:
        return Step(key=replace(key, next=None, due=None))
    return Step(key=key) if key.next is None or key.due is not None else _publish_next(key, now)


def tick(key: Key, now: float) -> Step:
    """Time has passed: publish what is due."""
    key = current(key, now)
    if key.next is None or key.holder is not None or key.due is None or key.due > now:
        return Step(key=key)
    kept = key.next
    closed = Closed(until=now + kept.closes, id=kept.message.id, call=kept.call) if kept.closes else None
    ended = (*key.ended, Ended(id="", call=kept.call, until=now + REMEMBERED))[-_MOST_ENDED:]
    return Step(key=replace(key, next=None, due=None, closed=closed, ended=ended), jobs=(kept.message,))


def with_content(message: Message, content: Message) -> Message:
    """The message with the arguments of another one."""
    return replace(
        message,
        body=content.body,
        content_type=content.content_type,
        content_encoding=content.content_encoding,
        arguments=content.arguments,
        preview=content.preview,
    )


def _asked_before(key: Key, claim: Claim) -> Answer | None:
    """The answer to a call that has been seen: whoever got none asks again."""
    call, holder = claim.call, key.holder
    if holder is not None and holder.call == call:
        return Answer(outcome=Outcome.STORED, id=holder.id, state=holder.phase)
    if holder is not None and holder.content is not None and holder.content.call == call:
        return Answer(outcome=Outcome.REPLACED, id=holder.id, state=holder.phase)
    if key.next is not None and key.next.call == call:
        outcome = Outcome.KEPT if claim.spread else Outcome.NEXT
        return Answer(outcome=outcome, id=claim.message.id)
    if any(one.call == call for one in key.ended) or (key.closed is not None and key.closed.call == call):
        return Answer(outcome=Outcome.STORED, id=claim.message.id, state="ended")
    return None


def _spread(key: Key, claim: Claim, now: float) -> tuple[Step, Answer]:
    """Keep a job of a burst until its time, or let the first one go at once."""
    id, seconds = claim.message.id, claim.seconds
    if claim.spread == THROTTLE and key.closed is None:
        closed = Closed(until=now + seconds, id=id, call=claim.call)
        return Step(key=replace(key, closed=closed), jobs=(claim.message,)), Answer(outcome=Outcome.STORED, id=id)
    due = now + seconds if key.closed is None else key.closed.until
    closes = seconds if claim.spread == THROTTLE else 0.0
    instead_of = "" if key.next is None else key.next.message.id
    kept = Kept(message=claim.message, call=claim.call, closes=closes)
    answer = Answer(outcome=Outcome.KEPT, id=id, instead_of=instead_of)
    return Step(key=replace(key, next=kept, due=due)), answer


def _take(key: Key, kept: Kept, now: float) -> Step:
    """Publish a job as the key's holder."""
    message = kept.message
    lock = lock_of(message)
    if lock is None:
        return Step(key=key, jobs=(message,))
    holder = Holder(
        id=message.id,
        call=kept.call,
        job=message.job,
        queue=message.queue,
        tenant=message.tenant,
        mode=lock.mode,
        since=now,
        serial=key.serial + 1,
        until=now + lock.seconds if lock.mode is Mode.WINDOW else None,
        linger=lock.linger,
        run_at=message.run_at,
    )
    ended = tuple(one for one in key.ended if one.id != message.id)
    return Step(
        key=replace(key, serial=holder.serial, holder=holder, closed=None, ended=ended),
        jobs=(message,),
    )


def _publish_next(key: Key, now: float) -> Step:
    assert key.next is not None
    return _take(replace(key, next=None, due=None), key.next, now)


def _started(key: Key, holder: Holder, worker: str, run: str, now: float) -> tuple[Step, Start]:
    """The holder runs from now on; with Mode.START the key is free then."""
    content = None if holder.content is None else holder.content.message
    if holder.mode is not Mode.START:
        starts = holder.starts + (holder.phase is Phase.WAITING or holder.run != run)
        running = replace(holder, phase=Phase.RUNNING, worker=worker, run=run, starts=starts)
        answer = Start(why=Why.RUN, serial=holder.serial, starts=starts, tell=True, content=content)
        return Step(key=replace(key, holder=running)), answer
    key = replace(key, holder=None)
    if holder.content is not None:
        ended = Ended(id=holder.id, call=holder.call, until=now + KEPT_FOR, content=holder.content)
        key = replace(key, ended=(*key.ended, ended)[-_MOST_ENDED:])
    if holder.linger:
        key = replace(key, closed=Closed(until=now + holder.linger, id=holder.id, call=holder.call))
    step = Step(key=key) if key.next is None else _publish_next(key, now)
    return step, Start(why=Why.RUN, serial=holder.serial, tell=holder.content is not None, content=content)


def _without_content(one: Ended, id: str, now: float) -> Ended:
    return replace(one, content=None, until=now + REMEMBERED) if one.id == id and one.content is not None else one
