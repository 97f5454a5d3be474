"""The status, the end and the result of a job, for clients that ask for them.

Each of these is one coroutine on the client's own event loop (palermo/client/journal_watch.py). The functions here
differ in how they wait for it: in a thread, or in another loop.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from palermo.client.journal_watch import JournalWatch, OnRecord
from palermo.client.recorder import FLUSH_EVERY
from palermo.client.status import (
    JobStatus,
    State,
    locate,
    status_at_end,
    status_at_location,
    status_at_step,
    status_kept_with_key,
    status_with_key,
)
from palermo.contract import clock
from palermo.contract.broker import Broker
from palermo.contract.finding import CANCELLED, JobLocation
from palermo.contract.rows import as_json
from palermo.contract.serialization import FOR_DISPLAY, Serializers
from palermo.core.journal_records import JournalLevel, Record, RecordKind
from palermo.core.lifecycle import JobState, StoredResult, result_of_record
from palermo.core.times import Duration, in_seconds
from palermo.core.unique_keys import Key
from palermo.core.unique_rules import DEBOUNCE, THROTTLE
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
from palermo.jobs import registry
from palermo.settings.settings import Settings

T = TypeVar("T")


class JobClient(Protocol):
    """What `palermo.client.Client` is to its jobs: their settings and serializers, and a way to wait for them.

    Handles, results and messages are given one, and do not import the class.
    """

    @property
    def settings(self) -> Settings:
        """The settings."""

    @property
    def serializers(self) -> Serializers:
        """The serializers of arguments and results."""

    @property
    def unpickled_job(self) -> Callable[..., Any]:
        """Makes the handle of a job that another process pickled; it asks the default client."""

    def watch(self, function: Callable[[JournalWatch], Coroutine[Any, Any, T]]) -> T:
        """See Client."""

    async def watch_async(self, function: Callable[[JournalWatch], Coroutine[Any, Any, T]]) -> T:
        """See Client."""


class AnyJob(Protocol):
    """What the handle of a job knows of it."""

    @property
    def id(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def job(self) -> str: ...
    @property
    def created_at(self) -> int | None: ...
    @property
    def keep_result(self) -> bool | None: ...


#: Waits for the end of a job, and returns the record that tells it.
WaitForEnd = Callable[[JournalWatch], Coroutine[Any, Any, Record]]

#: The least number of seconds between two looks at a job whose success nobody records.
_LOCATE_EVERY = 1.0

#: The seconds after which a wait looks at such a job although the journal counted nothing, doubled from the first to
#: the last: what counted it may have been read before the look that still saw the job.
_FIRST_LOOK, _LAST_LOOK = 1.0, 30.0

#: Seconds that a job may take on its way to the failed ones.
_FAILING_TIME = 10.0


def status(client: JobClient, job: AnyJob, *, patience: float | None = None) -> JobStatus:
    """See Job. Reading the journal may take `patience` seconds, or publish_timeout if it is None."""
    return client.watch(_status(client, job, patience))


async def status_async(client: JobClient, job: AnyJob) -> JobStatus:
    """See Job."""
    return await client.watch_async(_status(client, job, None))


def result(client: JobClient, job: AnyJob, timeout: Duration | None) -> Any:
    """See Job."""
    check_kept(client, job)
    return load_result(client, client.watch(_within(job, timeout, _journal_end(client, job, only_kept=True))))


async def result_async(client: JobClient, job: AnyJob, timeout: Duration | None) -> Any:
    """See Job."""
    check_kept(client, job)
    return load_result(
        client, await client.watch_async(_within(job, timeout, _journal_end(client, job, only_kept=True)))
    )


def wait(client: JobClient, job: AnyJob, timeout: Duration | None, on_record: OnRecord | None = None) -> JobStatus:
    """See Job; `on_record` gets what the journal tells of the job meanwhile, in the client's own thread."""
    return status_at_end(end(client, job, timeout, on_record))


async def wait_async(client: JobClient, job: AnyJob, timeout: Duration | None) -> JobStatus:
    """See Job."""
    check_on(client)
    return status_at_end(await client.watch_async(_within(job, timeout, _any_end(client, job, None))))


def end(client: JobClient, job: AnyJob, timeout: Duration | None, on_record: OnRecord | None = None) -> Record:
    """Wait until the job has ended; returns the record of its end. Raises as Job.wait."""
    check_on(client)
    return client.watch(_within(job, timeout, _any_end(client, job, on_record)))


def ends(
    client: JobClient, jobs: Sequence[AnyJob], timeout: Duration | None, on_record: OnRecord | None = None
) -> list[Record | PalermoError]:
    """`end` for many jobs, in their order; an error about one of them stands in the place of its record."""
    check_on(client)

    async def ended(watch: JournalWatch) -> list[Record | PalermoError]:
        waits = [_within(job, timeout, _any_end(client, job, on_record))(watch) for job in jobs]
        found: list[Record | PalermoError] = []
        for one in await asyncio.gather(*waits, return_exceptions=True):
            if isinstance(one, BaseException) and not isinstance(one, PalermoError):
                raise one
            found.append(one)
        return found

    return client.watch(ended)


def check_on(client: JobClient) -> None:
    """Raise JournalOff if the setting journal is off."""
    if client.settings.journal == JournalLevel.OFF:
        raise JournalOff(
            "the setting journal is off, so nothing tells how jobs end or what they return."
            ' Set it to "failures" or "all", for workers and clients alike.'
        )


def check_kept(client: JobClient, job: AnyJob) -> None:
    """Raise JournalOff or ResultNotKept if waiting for a result would be in vain."""
    check_on(client)
    if job.keep_result is False:
        raise _not_kept(job.id, "was enqueued without keep_result")


def find_end(client: JobClient, job: AnyJob) -> Record | None:
    """The record of the job's end, if the journal has one by now. Raises JournalOff, and BrokerUnavailable in time."""
    check_on(client)
    patience = client.settings.publish_timeout

    async def look(watch: JournalWatch) -> Record | None:
        try:
            async with asyncio.timeout(patience):
                return await watch.find_end(job.id, job.created_at, _since(job))
        except TimeoutError:
            raise BrokerUnavailable(
                f"the journal was not read within {patience:g} s. {watch.read_error}".strip()
            ) from None

    return client.watch(look)


def load_result(client: JobClient, record: Record) -> Any:
    """The value that a job returned, from the record of its end. Raises as `serialized_result`, and DecodeError."""
    value = serialized_result(record)
    if value is None:
        return None
    definition = registry.find(str(record.get("job")))
    classes = {**client.serializers.classes, **(definition.result_classes if definition is not None else {})}
    loaded = _safe(client, value, record["id"]).loads(value.body, classes)
    models = definition.models if definition is not None else None
    return loaded if models is None else models.read_result(loaded)


def serialized_result(record: Record) -> StoredResult | None:
    """The kept result of a job, still serialized, from the record of its end; None if a hook skipped the job.

    Raises JobFailed, ResultNotKept, ResultRefused.
    """
    id = record["id"]
    if record["kind"] != RecordKind.SUCCEEDED:
        raise _failed(record)
    refused = record.get("refused")
    if refused:
        raise ResultRefused(f"job {id} is done, and {refused}")
    value = result_of_record(record)
    if value is not None or record.get("skipped"):
        return value
    raise _not_kept(id, "is done, and did not keep its result")


def result_as_json(client: JobClient, record: Record) -> Any:
    """The kept result of a job as JSON values, from the record of its end; None for none. Runs no foreign code."""
    value = result_of_record(record)
    return None if value is None else as_json(_safe(client, value, record["id"]).loads(value.body, FOR_DISPLAY))


def _safe(client: JobClient, value: StoredResult, id: str) -> Any:
    serializer = client.serializers.get(value.content_type)
    if not serializer.safe:
        raise MediaTypeRefused(
            f"the result of job {id} is {value.content_type}, which could run anything when it is read."
        )
    return serializer


def _failed(record: Record) -> JobFailed:
    found = status_at_end(record)
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


def _since(job: AnyJob) -> float:
    """The instant from which the journal may tell of the job's end, by this process's clock."""
    return 0.0 if job.created_at is None else job.created_at - 1.0


def _within(job: AnyJob, timeout: Duration | None, wait: WaitForEnd) -> WaitForEnd:
    seconds = in_seconds(timeout)

    async def ended(watch: JournalWatch) -> Record:
        try:
            async with asyncio.timeout(seconds):
                return await wait(watch)
        except TimeoutError:
            why = (
                f"The journal cannot be read: {watch.read_error}"
                if watch.read_error
                else "`palermo status ID` says where it is, `palermo queues` whether a worker serves its queue."
            )
            raise ResultTimeout(f"job {job.id} has not ended within {seconds:g} s. {why}") from None

    return ended


def _journal_end(client: JobClient, job: AnyJob, on_record: OnRecord | None = None, *, only_kept: bool) -> WaitForEnd:
    """Wait until the journal tells how the job ended.

    With `only_kept` it raises ResultNotKept for a job that is seen to keep no result.
    """

    async def ended(watch: JournalWatch) -> Record:
        async def check(known: Record | None, cancelled: bool) -> Record | None:
            if known is None and job.keep_result and not cancelled:
                return None
            if known is not None and known["kind"] != RecordKind.FAILED:
                return known
            place = await locate(await watch.session(), job.id, job.queue)
            if known is not None:
                # It failed once; someone may have requeued it since.
                return known if not place.alive or _same_run(place, known) else None
            if only_kept and place.message is not None and place.message.keep_result is False:
                raise _not_kept(job.id, "was enqueued without keep_result")
            if place.state == JobState.FAILED:
                return _failed_record(job, place)
            if place.state == CANCELLED:
                return _cancelled_record(job, place)
            if place.gone and job.created_at is None:
                raise NotFound(f"job {job.id}: {_not_found_text(client, place)}")
            return None

        return await watch.end(job.id, job.created_at, _since(job), check=check, on_record=on_record)

    return ended


def _any_end(client: JobClient, job: AnyJob, on_record: OnRecord | None) -> WaitForEnd:
    """Wait for the end of any job, also of one whose end nobody records."""
    told = _journal_end(client, job, on_record, only_kept=False)

    async def ended(watch: JournalWatch) -> Record:
        if job.keep_result:
            return await told(watch)
        ways = {asyncio.ensure_future(told(watch)), asyncio.ensure_future(_disappearance(watch, job))}
        try:
            done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    return ended


async def _disappearance(watch: JournalWatch, job: AnyJob) -> Record:
    """Wait until a job is gone whose success may be recorded nowhere.

    When the journal counts successes of jobs of its name in its queue, this asks the broker whether it is still there.
    """
    session = await watch.session()
    # `_journal_end` looks at the failed jobs as well, at first, and the journal tells of later failures.
    place = await locate(session, job.id, job.queue, failed=False)
    name, queue = job.job, job.queue
    if place.running is not None:
        name, queue = place.running.job, place.running.queue
    elif place.message is not None:
        name, queue = place.message.job, place.message.queue
    if place.gone and job.created_at is None:
        # Whether the job ever existed is for `_journal_end` to say, which reads the journal.
        await asyncio.get_running_loop().create_future()
    missed, patience = place.gone, _FIRST_LOOK
    with watch.counting(queue, name) as counted:
        while True:
            if place.state == JobState.FAILED:
                return _failed_record(job, place)
            if place.state == CANCELLED:
                return _cancelled_record(job, place)
            if not missed:
                counted.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(patience):
                        await counted.wait()
                patience = min(2 * patience, _LAST_LOOK)
            await asyncio.sleep(_LOCATE_EVERY)
            # Once is not enough: a worker may have taken the job and not show it yet.
            place = await locate(await watch.session(), job.id, queue, failed=missed)
            if missed and place.gone:
                break
            missed = place.gone
    # If the job had gone wrong, the journal would tell that by now, or soon.
    record = await watch.find_end(job.id, job.created_at, _since(job))
    unwritten = {"kind": RecordKind.SUCCEEDED, "at": clock.now(), "id": job.id, "job": name, "queue": queue}
    return record or {**unwritten, "unwritten": True}


def _same_run(place: JobLocation, ended: Record) -> bool:
    """Whether the worker still settles the run that this record ends: it writes the record first."""
    began = 0.0 if place.running is None else place.running.started_at
    return place.worker == ended.get("writer") and began <= ended["at"]


def _cancelled_record(job: AnyJob, place: JobLocation) -> Record:
    """The record that the journal will have of a job that was cancelled and waits until a worker drops it."""
    message = place.message
    assert message is not None
    return {"kind": RecordKind.CANCELLED, "at": clock.now(), "id": job.id, "job": message.job, "queue": message.queue}


def _failed_record(job: AnyJob, place: JobLocation) -> Record:
    """The record that the journal would have of a job among the failed."""
    message = place.message
    assert message is not None
    assert message.failure is not None
    failure = message.failure
    return {
        "kind": RecordKind.FAILED,
        "at": float(failure.failed_at),
        "id": job.id,
        "job": message.job,
        "queue": message.queue,
        "attempt": message.attempt,
        "error": failure.exception_class,
        "message": failure.message,
    }


def _status(
    client: JobClient, job: AnyJob, patience: float | None
) -> Callable[[JournalWatch], Coroutine[Any, Any, JobStatus]]:
    async def status(watch: JournalWatch) -> JobStatus:
        found = await status_alone(watch)
        if found.state is State.UNKNOWN and client.settings.journal != JournalLevel.OFF:
            await _records_written()
            found = await status_alone(watch)
        if not found.key:
            return found
        try:
            return status_with_key(found, await (await watch.session()).keys.find(found.key))
        except BrokerUnavailable as error:
            reason = f"{found.reason} Nothing is known of its key now: {error}".strip()
            return replace(found, reason=reason)

    async def status_alone(watch: JournalWatch) -> JobStatus:
        """The status without what other jobs do with its key."""
        known = watch.recent_end(job.id, job.created_at)
        if known is not None and known["kind"] == RecordKind.SUCCEEDED:
            return status_at_end(known)
        place = await locate(await watch.session(), job.id, job.queue)
        if place.state:
            return status_at_location(job.id, place, client.serializers)
        read_error, step = "", None
        if client.settings.journal != JournalLevel.OFF:
            try:
                async with asyncio.timeout(client.settings.publish_timeout if patience is None else patience):
                    known = await watch.find_end(job.id, job.created_at, _since(job))
                    if known is None and place.unseen:
                        step = await watch.last_step(job.id, job.created_at, _since(job))
            except TimeoutError:
                read_error = f"The journal was not read in time. {watch.read_error}".strip()
            # The job may have been on its way from one place to the next, or be back.
            failed = known is None or known["kind"] == RecordKind.FAILED
            place = await locate(await watch.session(), job.id, job.queue, failed=failed)
            if place.state:
                return status_at_location(job.id, place, client.serializers)
        # A failure is recorded before the job lies among the failed.
        fresh = known is not None and clock.now() - known["at"] < _FAILING_TIME
        if known is not None and (known["kind"] != RecordKind.FAILED or place.unseen or fresh):
            return status_at_end(known)
        key = None if known is not None else await _key_about(await watch.session(), job.id)
        if key is not None and (kept := status_kept_with_key(job.id, key)):
            return kept
        told = not read_error and client.settings.journal != JournalLevel.OFF
        if key is not None and told and _tells_of_success(key):
            return JobStatus(
                state=State.DONE, id=job.id, job=job.job, queue=job.queue, key=key.name, reason=_KEY_CLOSED
            )
        if step is not None and place.unseen and (waiting := status_at_step(step, place)):
            return waiting
        since = "It failed, and is not among the failed jobs any more. " if known is not None else ""
        reason = f"{since}{_not_found_text(client, place)} {read_error}".strip()
        return JobStatus(state=State.UNKNOWN, id=job.id, job=job.job, queue=job.queue, reason=reason)

    return status


async def _records_written() -> None:
    """Wait for the records of a job that has just begun or ended: its worker writes several together."""
    await asyncio.sleep(2 * FLUSH_EVERY)


async def _key_about(broker: Broker, id: str) -> Key | None:
    """The key with which this job is kept, or which is closed since this job had it; None if there is none."""
    for key in (await broker.keys.page(id, offset=0, limit=sys.maxsize)).keys:
        kept, closed = key.next, key.closed
        if (kept is not None and kept.message.id == id) or (closed is not None and closed.id == id):
            return key
    return None


def _tells_of_success(key: Key) -> bool:
    """Whether the key is closed as `dedupe` says, so that its job is done: a job that goes wrong frees its key."""
    return key.closed is not None and not key.name.startswith((f"{THROTTLE}:", f"{DEBOUNCE}:"))


#: How it is known that a job is done of which the journal does not tell.
_KEY_CLOSED = "no second one is enqueued for a while after its end, as dedupe says; the journal tells of no failure"

#: Why the journal does not tell of a job, by its level.
_SILENCE = {
    JournalLevel.OFF: "The setting journal is off, so nothing tells of jobs that have ended.",
    JournalLevel.FAILURES: "It may have succeeded: at the journal's level, failures, that is known only of jobs that"
    " keep their result.",
    JournalLevel.ALL: "The journal has no record of it either: check the id. Else the record was too old to be kept, or"
    " its worker has another journal level or was killed before it wrote the record.",
}


def _not_found_text(client: JobClient, place: JobLocation) -> str:
    where = "it does not wait in a queue or for its time, does not run, and is not among the failed jobs"
    if place.unseen:
        where += f", as far as could be looked; not looked at: {'; '.join(place.unseen)}"
    return f"{where}. {_SILENCE[JournalLevel(client.settings.journal)]}"
