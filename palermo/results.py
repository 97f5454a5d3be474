"""What becomes of a job, for whoever enqueued it: its status, its end, what it returned.

Each of these is one coroutine on the client's own event loop (palermo/waiting.py); the functions here differ in how
they wait for it, as a thread or in another loop.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from palermo.classes import LOOKING
from palermo.core.journal import Kind, Level, Record
from palermo.core.lifecycle import JobState
from palermo.core.outcome import Value, kept
from palermo.errors import (
    BrokerUnavailable,
    JobFailed,
    JournalOff,
    MediaTypeRefused,
    NotFound,
    PalermoError,
    ResultNotKept,
    ResultRefused,
    ResultTimeout,
)
from palermo.handles import Job
from palermo.jobs import registry
from palermo.locating import Place, locate
from palermo.rows import plain
from palermo.status import JobStatus, State, of_end, of_place
from palermo.waiting import OnRecord, Watch

if TYPE_CHECKING:
    from palermo.client import Client

#: Waits for the end of a job, and gives the record that tells it.
Ended = Callable[[Watch], Coroutine[Any, Any, Record]]

#: Seconds between two looks, at least, at a job whose success nobody writes down.
_LOOK_EVERY = 1.0

#: Seconds that a job may be on its way to the failed ones.
_ON_ITS_WAY = 10.0


def status(client: "Client", job: Job, *, patience: float | None = None) -> JobStatus:
    """See Job; reading the journal may take so many seconds, those of publish_timeout unless given."""
    return client.watch(_status(client, job, patience))


async def status_async(client: "Client", job: Job) -> JobStatus:
    """See Job."""
    return await client.watch_async(_status(client, job, None))


def result(client: "Client", job: Job, timeout: float | None) -> Any:
    """See Job."""
    check_kept(client, job)
    return value_of(client, client.watch(_within(job, timeout, _told(client, job, only_kept=True))))


async def result_async(client: "Client", job: Job, timeout: float | None) -> Any:
    """See Job."""
    check_kept(client, job)
    return value_of(client, await client.watch_async(_within(job, timeout, _told(client, job, only_kept=True))))


def wait(client: "Client", job: Job, timeout: float | None, on_record: OnRecord | None = None) -> JobStatus:
    """See Job; `on_record` gets what the journal tells of the job meanwhile, in the client's own thread."""
    return of_end(end(client, job, timeout, on_record))


async def wait_async(client: "Client", job: Job, timeout: float | None) -> JobStatus:
    """See Job."""
    check_on(client)
    return of_end(await client.watch_async(_within(job, timeout, _any_end(client, job, None))))


def end(client: "Client", job: Job, timeout: float | None, on_record: OnRecord | None = None) -> Record:
    """The record of its end, as soon as it has ended. Raises as Job.wait."""
    check_on(client)
    return client.watch(_within(job, timeout, _any_end(client, job, on_record)))


def ends(
    client: "Client", jobs: Sequence[Job], timeout: float | None, on_record: OnRecord | None = None
) -> list[Record | PalermoError]:
    """The same for many jobs, in their order; what goes wrong with one of them in its place."""
    check_on(client)

    async def ended(watch: Watch) -> list[Record | PalermoError]:
        waits = [_within(job, timeout, _any_end(client, job, on_record))(watch) for job in jobs]
        found: list[Record | PalermoError] = []
        for one in await asyncio.gather(*waits, return_exceptions=True):
            if isinstance(one, BaseException) and not isinstance(one, PalermoError):
                raise one
            found.append(one)
        return found

    return client.watch(ended)


def check_on(client: "Client") -> None:
    """Raise JournalOff where nothing is written down."""
    if client.settings.journal == Level.OFF:
        raise JournalOff(
            "the setting journal is off, so nothing tells how jobs end or what they return."
            ' Set it to "failures" or "all", for workers and clients alike.'
        )


def check_kept(client: "Client", job: Job) -> None:
    """Raise JournalOff or ResultNotKept where waiting for a result would be in vain."""
    check_on(client)
    if job.keep_result is False:
        raise _not_kept(job.id, "was enqueued without keep_result")


def known(client: "Client", job: Job) -> Record | None:
    """The record of its end, if the journal has one by now. Raises JournalOff, and BrokerUnavailable in time."""
    check_on(client)
    patience = client.settings.publish_timeout

    async def look(watch: Watch) -> Record | None:
        try:
            async with asyncio.timeout(patience):
                return await watch.known(job.id, job.created_at, _since(job))
        except TimeoutError:
            raise BrokerUnavailable(
                f"the journal was not read within {patience:g} s. {watch.trouble}".strip()
            ) from None

    return client.watch(look)


def value_of(client: "Client", record: Record) -> Any:
    """What the job returned that ended so. Raises as `encoded`, and DecodeError."""
    value = encoded(record)
    if value is None:
        return None
    definition = registry.find(str(record.get("job")))
    classes = {**client.serializers.classes, **(definition.result_classes if definition is not None else {})}
    return _safe(client, value, record["id"]).loads(value.body, classes)


def encoded(record: Record) -> Value | None:
    """What the job returned that ended so, as it is kept; None where a hook skipped the job.

    Raises JobFailed, ResultNotKept, ResultRefused.
    """
    id = record["id"]
    if record["kind"] != Kind.SUCCEEDED:
        raise _failed(record)
    refused = record.get("refused")
    if refused:
        raise ResultRefused(f"job {id} is done, and {refused}")
    value = kept(record)
    if value is not None or record.get("skipped"):
        return value
    raise _not_kept(id, "is done, and did not keep its result")


def shown(client: "Client", record: Record) -> Any:
    """What the job returned that ended so, in what JSON has; None for nothing. Runs no code of the value's."""
    value = kept(record)
    return None if value is None else plain(_safe(client, value, record["id"]).loads(value.body, LOOKING))


def _safe(client: "Client", value: Value, id: str) -> Any:
    serializer = client.serializers.get(value.content_type)
    if not serializer.safe:
        raise MediaTypeRefused(
            f"the result of job {id} is {value.content_type}, which could run anything when it is read."
        )
    return serializer


def _failed(record: Record) -> JobFailed:
    found = of_end(record)
    why = f"{found.error}: {found.message}" if found.error else found.message
    text = (
        f"job {found.id} {'' if found.state is State.FAILED else 'was '}{found.state.value}{f': {why}' if why else ''}."
    )
    return JobFailed(text, state=found.state.value, error=found.error, message=found.message)


def _not_kept(id: str, what: str) -> ResultNotKept:
    return ResultNotKept(
        f"job {id} {what}. Declare it with @palermo.job(keep_result=True), or enqueue it by"
        " .options(keep_result=True), to have what it returns kept."
    )


def _since(job: Job) -> float:
    """From when on the journal may tell of its end, by this process's clock."""
    return 0.0 if job.created_at is None else job.created_at - 1.0


def _within(job: Job, timeout: float | None, wait: Ended) -> Ended:
    async def ended(watch: Watch) -> Record:
        try:
            async with asyncio.timeout(timeout):
                return await wait(watch)
        except TimeoutError:
            why = f" The journal cannot be read: {watch.trouble}" if watch.trouble else ""
            raise ResultTimeout(f"job {job.id} has not ended within {timeout:g} s.{why}") from None

    return ended


def _told(client: "Client", job: Job, on_record: OnRecord | None = None, *, only_kept: bool) -> Ended:
    """Wait until the journal tells how it ended; with `only_kept` in vain if that will not tell what it returned."""

    async def ended(watch: Watch) -> Record:
        async def doubt(known: Record | None) -> Record | None:
            if (known is None and job.keep_result) or (known is not None and known["kind"] != Kind.FAILED):
                return known
            place = await locate(await watch.session(), job.id, job.queue)
            if known is not None:
                # It failed once; someone may have requeued it since.
                return None if place.alive else known
            if only_kept and place.message is not None and place.message.keep_result is False:
                raise _not_kept(job.id, "was enqueued without keep_result")
            if place.state == JobState.FAILED:
                return _failed_record(job, place)
            if place.gone and job.created_at is None:
                raise NotFound(f"job {job.id}: {_nowhere(client, place)}")
            return None

        return await watch.end(job.id, job.created_at, _since(job), doubt=doubt, on_record=on_record)

    return ended


def _any_end(client: "Client", job: Job, on_record: OnRecord | None) -> Ended:
    """Wait for the end of any job, be it written down or not."""
    told = _told(client, job, on_record, only_kept=False)

    async def ended(watch: Watch) -> Record:
        if job.keep_result or client.settings.journal == Level.ALL:
            return await told(watch)
        ways = {asyncio.ensure_future(told(watch)), asyncio.ensure_future(_gone(watch, job))}
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    return ended


async def _gone(watch: Watch, job: Job) -> Record:
    """Wait until a job is gone whose success nobody writes down.

    When the journal counts successes of jobs of its name in its queue, the broker is asked whether it is still there.
    """
    session = await watch.session()
    place = await locate(session, job.id, job.queue)
    name, queue = job.job, job.queue
    if place.running is not None:
        name, queue = place.running.job, place.running.queue
    elif place.message is not None:
        name, queue = place.message.job, place.message.queue
    if place.gone and job.created_at is None:
        # Whether it ever was is told by whoever reads the journal.
        await asyncio.get_running_loop().create_future()
    missed = place.gone
    with watch.counting(queue, name) as counted:
        while True:
            if place.state == JobState.FAILED:
                return _failed_record(job, place)
            if not missed:
                counted.clear()
                await counted.wait()
            await asyncio.sleep(_LOOK_EVERY)
            place = await locate(await watch.session(), job.id, queue)
            # Once is not enough: a worker may have taken it that does not show it yet.
            if missed and place.gone:
                break
            missed = place.gone
    # What went wrong would be told by now, or soon.
    record = await watch.known(job.id, job.created_at, _since(job))
    unwritten = {"kind": Kind.SUCCEEDED, "at": time.time(), "id": job.id, "job": name, "queue": queue}
    return record or {**unwritten, "unwritten": True}


def _failed_record(job: Job, place: Place) -> Record:
    """What the journal would tell of a job that lies among the failed."""
    message = place.message
    assert message is not None
    assert message.failure is not None
    failure = message.failure
    return {
        "kind": Kind.FAILED,
        "at": float(failure.failed_at),
        "id": job.id,
        "job": message.job,
        "queue": message.queue,
        "attempt": message.attempt,
        "error": failure.exception_class,
        "message": failure.message,
    }


def _status(client: "Client", job: Job, patience: float | None) -> Callable[[Watch], Coroutine[Any, Any, JobStatus]]:
    async def status(watch: Watch) -> JobStatus:
        known = watch.remembered(job.id, job.created_at)
        if known is not None and known["kind"] == Kind.SUCCEEDED:
            return of_end(known)
        place = await locate(await watch.session(), job.id, job.queue)
        if place.state:
            return of_place(job.id, place)
        trouble = ""
        if client.settings.journal != Level.OFF:
            try:
                async with asyncio.timeout(client.settings.publish_timeout if patience is None else patience):
                    known = await watch.known(job.id, job.created_at, _since(job))
            except TimeoutError:
                trouble = f"The journal was not read in time. {watch.trouble}".strip()
            # It may have been on its way from one place to the next, or be back.
            place = await locate(await watch.session(), job.id, job.queue)
            if place.state:
                return of_place(job.id, place)
        # A failure is written down before the job lies among the failed.
        fresh = known is not None and time.time() - known["at"] < _ON_ITS_WAY
        if known is not None and (known["kind"] != Kind.FAILED or place.unseen or fresh):
            return of_end(known)
        since = "It failed, and is not among the failed jobs any more. " if known is not None else ""
        reason = f"{since}{_nowhere(client, place)} {trouble}".strip()
        return JobStatus(state=State.UNKNOWN, id=job.id, job=job.job, queue=job.queue, reason=reason)

    return status


#: Why the journal does not tell of a job, by its level.
_SILENCE = {
    Level.OFF: "The setting journal is off, so nothing tells of jobs that have ended.",
    Level.FAILURES: "It may have succeeded: at the journal's level, failures, that is known only of jobs that keep"
    " their result.",
    Level.ALL: "The journal does not tell of it either: it was never there, or is forgotten.",
}


def _nowhere(client: "Client", place: Place) -> str:
    where = "it does not wait in a queue or for its time, does not run, and is not among the failed jobs"
    if place.unseen:
        where += f", as far as could be looked; not looked at: {'; '.join(place.unseen)}"
    return f"{where}. {_SILENCE[Level(client.settings.journal)]}"
