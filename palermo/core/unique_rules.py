"""The rules for keys of unique jobs: how each event changes a key. All brokers apply them.

Pure: a key, the event and the time are arguments. The results are the changed key, the jobs to publish with it, and the
answer; the broker stores all of them in one transaction. docs/internals/decisions/unique-jobs.md explains why the end
of a run is stored before its job is acknowledged.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from palermo.core.message import MAX_BODY, Message
from palermo.core.unique_keys import (
    Cooldown,
    Key,
    KeyHolder,
    KeyRequest,
    Mode,
    PastHolder,
    Phase,
    StoredMessage,
    lock_of,
    shared,
)

#: The effects of a second enqueue: return the first job, raise, replace the first job's arguments if it still waits
#: (otherwise run after it), or run the job again after the present run.
RETURN, RAISE, REPLACE, RERUN = ON_DUPLICATE = ("return", "raise", "replace", "rerun")

DEBOUNCE, THROTTLE = ("debounce", "throttle")

#: Seconds for which a finished job is remembered, since the broker may deliver it again.
REMEMBERED = 60.0

#: The same for a job that no longer holds a key and whose arguments are stored nowhere else.
REMEMBERED_WITH_CONTENT = 7 * 86_400.0

#: Maximum number of finished jobs that one key remembers.
_MOST_ENDED = 100


class EnqueueOutcome(StrEnum):
    """The outcome of an enqueue."""

    STORED = "stored"  #: the job is in its queue
    KEPT = "kept"  #: the job is kept with its key until its time, replacing an earlier one
    DUPLICATE = "duplicate"  #: another job holds the key; nothing was changed
    REPLACED = "replaced"  #: the waiting job has these arguments now
    NEXT = "next"  #: the job will be published when the present one has ended


class EnqueueAnswer(Struct, frozen=True, kw_only=True):
    """The answer to an enqueue."""

    outcome: EnqueueOutcome
    #: The job that represents the enqueue: its own, or the holder of the key.
    id: str
    #: The state of that job: waiting, running, ended, or recent if it has the key for a time and its state is unknown.
    state: str = "waiting"
    #: The job that won't run because of this one, for example one that a debounce replaced.
    displaced: str = ""


class StartReason(StrEnum):
    """The reason why a job may or must not be started."""

    RUN = "run"  #: it holds the key
    ENDED = "ended"  #: it has ended: this is a copy of its message, or its worker died before the ack
    COPY = "copy"  #: another worker runs it from another message, which still exists
    LATER = "later"  #: another worker was allowed to start it a moment ago, and may be alive
    DUPLICATE = "duplicate"  #: another job holds its key


class StartAnswer(Struct, frozen=True, kw_only=True):
    """Whether a job may be started."""

    why: StartReason
    #: The other job that holds the key, if any.
    holder: str = ""
    #: The run's end must contain both: the holder's serial, and the number of its run.
    serial: int = 0
    starts: int = 0
    #: Whether the worker must report the run's end.
    report_end: bool = False
    #: The message whose arguments the job runs with instead of its own.
    content: Message | None = None


class RunOutcome(StrEnum):
    """The end of a run, in the terms of its key."""

    DONE = "done"
    OVER = "over"  #: failed, discarded or cancelled
    AGAIN = "again"  #: it waits again, for its retry or because it was released; or a failed workflow continues


class KeyUpdate(Struct, frozen=True, kw_only=True):
    """A key after an event."""

    key: Key
    #: Jobs to publish in the same transaction.
    jobs: tuple[Message, ...] = ()


def current(key: Key, now: float) -> Key:
    """The key without expired parts. Need not be stored, since every reader computes it."""
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


def enqueue(key: Key, claim: KeyRequest, now: float) -> tuple[KeyUpdate, EnqueueAnswer]:
    """The update and the answer for an enqueued job."""
    key = current(key, now)
    known = _asked_before(key, claim)
    if known is not None:
        return KeyUpdate(key=key), known
    if claim.spread:
        return _spread(key, claim, now)
    holder = key.holder
    if holder is None and key.closed is None:
        kept = StoredMessage(message=claim.message, call=claim.call)
        return _take(key, kept, now), EnqueueAnswer(outcome=EnqueueOutcome.STORED, id=claim.message.id)
    if holder is None:
        assert key.closed is not None
        lock = lock_of(claim.message)
        state = "recent" if lock is not None and lock.mode is Mode.START else "ended"
        return KeyUpdate(key=key), EnqueueAnswer(outcome=EnqueueOutcome.DUPLICATE, id=key.closed.id, state=state)
    # Workers don't report the runs of a window's job.
    state = "recent" if holder.mode is Mode.WINDOW else holder.phase.value
    duplicate = EnqueueAnswer(outcome=EnqueueOutcome.DUPLICATE, id=holder.id, state=state)
    if holder.mode is Mode.WINDOW or claim.on_duplicate in (RETURN, RAISE):
        return KeyUpdate(key=key), duplicate
    kept = StoredMessage(message=claim.message, call=claim.call)
    if holder.phase is Phase.RUNNING:
        displaced = "" if key.next is None else key.next.message.id
        answer = EnqueueAnswer(outcome=EnqueueOutcome.NEXT, id=claim.message.id, displaced=displaced)
        return KeyUpdate(key=replace(key, next=kept)), answer
    if claim.on_duplicate == RERUN:
        return KeyUpdate(key=key), duplicate
    return KeyUpdate(key=replace(key, holder=replace(holder, content=kept))), replace(
        duplicate, outcome=EnqueueOutcome.REPLACED
    )


def start(
    key: Key, message: Message, *, worker: str, run: str, again: bool, now: float
) -> tuple[KeyUpdate, StartAnswer]:
    """The update and the answer for a worker that is about to start a delivered job.

    `run` identifies this run among all runs of all jobs. `again` means that the message was delivered before and that
    no worker runs the job any more.
    """
    key = current(key, now)
    lock, holder = lock_of(message), key.holder
    if lock is None or not lock.asks:
        return KeyUpdate(key=key), StartAnswer(why=StartReason.RUN)
    if holder is not None and holder.id == message.id:
        if holder.phase is Phase.RUNNING and holder.run != run and not again:
            return KeyUpdate(key=key), StartAnswer(why=StartReason.COPY)
        return _started(key, holder, worker, run, now)
    before = next((one for one in key.ended if one.id == message.id), None)
    if before is not None:
        if before.content is None:
            return KeyUpdate(key=key), StartAnswer(why=StartReason.ENDED)
        return KeyUpdate(key=key), StartAnswer(why=StartReason.RUN, report_end=True, content=before.content.message)
    if lock.mode is Mode.START:
        return KeyUpdate(key=key), StartAnswer(why=StartReason.RUN)
    if holder is not None:
        return KeyUpdate(key=key), StartAnswer(why=StartReason.DUPLICATE, holder=holder.id)
    # No job holds the key: it was freed while the job waited, or another program published the job.
    key = _take(key, StoredMessage(message=message, call=""), now).key
    assert key.holder is not None
    return _started(key, key.holder, worker, run, now)


def readmit(key: Key, message: Message, now: float) -> tuple[KeyUpdate, bool]:
    """The update for a job that an operator requeues or moves to another queue, and whether this is permitted.

    The caller publishes the job. A cooldown doesn't prevent a requeue, but a run of the same job does. A failing job is
    in `failed` a moment before its run is over, and until then a requeued one would be dropped as a copy.
    """
    key = current(key, now)
    lock, holder = lock_of(message), key.holder
    if lock is None or not lock.asks:
        return job_moved(key, message, now), True
    if holder is not None:
        return job_moved(key, message, now), holder.id == message.id and holder.phase is Phase.WAITING
    return replace(_take(key, StoredMessage(message=message, call=""), now), jobs=()), True


def workflow_changed(key: Key, root: Message, how: RunOutcome, now: float) -> tuple[KeyUpdate, bool]:
    """The update for a workflow that has ended, or continues because a failed step is requeued; and whether it may.

    `root` is the job that started the workflow. The workflow holds the key as a running job, since no job waits.
    """
    if how is not RunOutcome.AGAIN:
        return end(key, root.id, how, serial=None, now=now), True
    key, lock = current(key, now), lock_of(root)
    if lock is None or lock.mode is not Mode.DONE:
        return KeyUpdate(key=key), True
    if key.holder is not None:
        return KeyUpdate(key=key), key.holder.id == root.id
    key = _take(key, StoredMessage(message=root, call=""), now).key
    assert key.holder is not None
    return _started(key, key.holder, "", "", now)[0], True


def job_moved(key: Key, message: Message, now: float) -> KeyUpdate:
    """The update for a waiting job that is moved to another queue or due time, where `message` has both."""
    key = current(key, now)
    holder = key.holder
    if holder is None or holder.id != message.id or holder.phase is not Phase.WAITING:
        return KeyUpdate(key=key)
    return KeyUpdate(key=replace(key, holder=replace(holder, queue=shared(message.queue), run_at=message.run_at)))


def job_removed(key: Key, id: str, now: float, *, drop_next: bool = False) -> KeyUpdate:
    """The update for a waiting job that is removed.

    With `drop_next`, the job that should run after it is removed too, because the whole queue is emptied.
    """
    holder = key.holder
    if holder is None or holder.id != id or holder.phase is not Phase.WAITING:
        return KeyUpdate(key=current(key, now))
    return free(key, now=now, drop_next=drop_next)


def end(
    key: Key,
    id: str,
    how: RunOutcome,
    *,
    serial: int | None,
    now: float,
    run_at: float | None = None,
    starts: int | None = None,
) -> KeyUpdate:
    """The update for the end of a run; changes nothing unless the job holds the key.

    `serial` and `starts` are those of its start. `run_at` is when it runs again, in Unix seconds; None for immediately
    or never. Reporting the same end again changes nothing, even if the job was started again or the key has another
    holder by then.
    """
    key = current(key, now)
    holder = key.holder
    if holder is None or holder.id != id or (serial is not None and serial != holder.serial):
        if how is RunOutcome.AGAIN:
            return KeyUpdate(key=key)
        return KeyUpdate(key=replace(key, ended=tuple(_without_content(one, id, now) for one in key.ended)))
    if starts is not None and starts < holder.starts:
        # The broker had delivered the job to another worker before this end was known, so it was started again.
        return KeyUpdate(key=key)
    if how is RunOutcome.AGAIN:
        known = max(holder.starts, starts or 0)
        waiting = replace(holder, phase=Phase.WAITING, worker="", run="", run_at=run_at, starts=known)
        return KeyUpdate(key=replace(key, holder=waiting))
    if holder.mode is Mode.WINDOW and how is RunOutcome.DONE:
        return KeyUpdate(key=key)
    ended = PastHolder(id=id, call=holder.call, until=now + REMEMBERED)
    key = replace(key, holder=None, ended=(*key.ended, ended)[-_MOST_ENDED:])
    if key.next is not None:
        return _publish_next(key, now)
    if how is RunOutcome.DONE and holder.linger:
        key = replace(key, closed=Cooldown(until=now + holder.linger, id=id, call=holder.call))
    return KeyUpdate(key=key)


def free(key: Key, *, now: float, drop_next: bool = False) -> KeyUpdate:
    """The update that takes the key from its holder. The job to run next is published, or dropped with `drop_next`."""
    key = replace(current(key, now), holder=None, closed=None)
    if drop_next:
        return KeyUpdate(key=replace(key, next=None, due=None))
    return KeyUpdate(key=key) if key.next is None or key.due is not None else _publish_next(key, now)


def enqueue_refused(key: Key, id: str, now: float) -> KeyUpdate:
    """The update that reverts an enqueue whose job was not stored because its queue is full."""
    if key.holder is not None and key.holder.id == id:
        return free(key, now=now)
    if key.closed is not None and key.closed.id == id:
        return KeyUpdate(key=replace(key, closed=None))
    return KeyUpdate(key=key)


def publish_due(key: Key, now: float) -> KeyUpdate:
    """The update that publishes a job whose time has come."""
    key = current(key, now)
    if key.next is None or key.holder is not None or key.due is None or key.due > now:
        return KeyUpdate(key=key)
    kept = key.next
    closed = Cooldown(until=now + kept.closes, id=kept.message.id, call=kept.call) if kept.closes else None
    ended = (*key.ended, PastHolder(id="", call=kept.call, until=now + REMEMBERED))[-_MOST_ENDED:]
    return KeyUpdate(key=replace(key, next=None, due=None, closed=closed, ended=ended), jobs=(kept.message,))


def with_arguments_of(message: Message, content: Message) -> Message:
    """The message with the arguments of another one. If they differ, its saved data no longer applies."""
    return replace(
        message,
        saved=message.saved if message.body == content.body else None,
        body=content.body,
        content_type=content.content_type,
        content_encoding=content.content_encoding,
        arguments=content.arguments,
        preview=content.preview,
    )


def as_they_run(messages: Iterable[Message], keys: Mapping[str, Key], *, max_body: int = MAX_BODY) -> list[Message]:
    """Waiting messages with the arguments that they will run with. A later enqueue may have replaced their own.

    `keys` has the states of the keys in `key_names`, without missing ones. A body of more than `max_body` bytes is cut
    to one byte more.
    """
    found: list[Message] = []
    for message in messages:
        lock = lock_of(message)
        key = keys.get(lock.key) if lock is not None and lock.asks else None
        content = None if key is None else next((one.content for one in key.holders if one.id == message.id), None)
        if content is not None:
            message = with_arguments_of(message, content.message)
            message = replace(message, body=message.body[: max_body + 1])
        found.append(message)
    return found


def _asked_before(key: Key, claim: KeyRequest) -> EnqueueAnswer | None:
    """The answer to an earlier request of the same call; None for the first request.

    A client repeats unanswered requests.
    """
    call, holder = claim.call, key.holder
    if holder is not None and holder.call == call:
        return EnqueueAnswer(outcome=EnqueueOutcome.STORED, id=holder.id, state=holder.phase.value)
    if holder is not None and holder.content is not None and holder.content.call == call:
        return EnqueueAnswer(outcome=EnqueueOutcome.REPLACED, id=holder.id, state=holder.phase.value)
    if key.next is not None and key.next.call == call:
        outcome = EnqueueOutcome.KEPT if claim.spread else EnqueueOutcome.NEXT
        return EnqueueAnswer(outcome=outcome, id=claim.message.id)
    if any(one.call == call for one in key.ended) or (key.closed is not None and key.closed.call == call):
        return EnqueueAnswer(outcome=EnqueueOutcome.STORED, id=claim.message.id, state="ended")
    return None


def _spread(key: Key, claim: KeyRequest, now: float) -> tuple[KeyUpdate, EnqueueAnswer]:
    """The update and the answer for a debounce or throttle."""
    id, seconds = claim.message.id, claim.seconds
    if claim.spread == THROTTLE and key.closed is None:
        closed = Cooldown(until=now + seconds, id=id, call=claim.call)
        return KeyUpdate(key=replace(key, closed=closed), jobs=(claim.message,)), EnqueueAnswer(
            outcome=EnqueueOutcome.STORED, id=id
        )
    due = now + seconds if key.closed is None else key.closed.until
    closes = seconds if claim.spread == THROTTLE else 0.0
    displaced = "" if key.next is None else key.next.message.id
    kept = StoredMessage(message=claim.message, call=claim.call, closes=closes)
    answer = EnqueueAnswer(outcome=EnqueueOutcome.KEPT, id=id, displaced=displaced)
    return KeyUpdate(key=replace(key, next=kept, due=due)), answer


def _take(key: Key, kept: StoredMessage, now: float) -> KeyUpdate:
    """The update that publishes a job as the key's holder."""
    message = kept.message
    lock = lock_of(message)
    if lock is None:
        return KeyUpdate(key=key, jobs=(message,))
    holder = KeyHolder(
        id=message.id,
        call=kept.call,
        job=shared(message.job),
        queue=shared(message.queue),
        tenant=shared(message.tenant),
        mode=lock.mode,
        since=now,
        serial=key.serial + 1,
        until=now + lock.seconds if lock.mode is Mode.WINDOW else None,
        linger=lock.linger,
        run_at=message.run_at,
    )
    ended = tuple(one for one in key.ended if one.id != message.id)
    return KeyUpdate(
        key=replace(key, serial=holder.serial, holder=holder, closed=None, ended=ended),
        jobs=(message,),
    )


def _publish_next(key: Key, now: float) -> KeyUpdate:
    assert key.next is not None
    return _take(replace(key, next=None, due=None), key.next, now)


def _started(key: Key, holder: KeyHolder, worker: str, run: str, now: float) -> tuple[KeyUpdate, StartAnswer]:
    """The update and the answer for a holder that starts now; with Mode.START the key becomes free."""
    content = None if holder.content is None else holder.content.message
    if holder.mode is not Mode.START:
        starts = holder.starts + (holder.phase is Phase.WAITING or holder.run != run)
        running = replace(holder, phase=Phase.RUNNING, worker=shared(worker), run=run, starts=starts)
        answer = StartAnswer(why=StartReason.RUN, serial=holder.serial, starts=starts, report_end=True, content=content)
        return KeyUpdate(key=replace(key, holder=running)), answer
    key = replace(key, holder=None)
    if holder.content is not None:
        ended = PastHolder(id=holder.id, call=holder.call, until=now + REMEMBERED_WITH_CONTENT, content=holder.content)
        key = replace(key, ended=(*key.ended, ended)[-_MOST_ENDED:])
    if holder.linger:
        key = replace(key, closed=Cooldown(until=now + holder.linger, id=holder.id, call=holder.call))
    step = KeyUpdate(key=key) if key.next is None else _publish_next(key, now)
    return step, StartAnswer(
        why=StartReason.RUN, serial=holder.serial, report_end=holder.content is not None, content=content
    )


def _without_content(one: PastHolder, id: str, now: float) -> PastHolder:
    return replace(one, content=None, until=now + REMEMBERED) if one.id == id and one.content is not None else one
