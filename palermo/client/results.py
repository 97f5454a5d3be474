"""The end and the result of a job, for clients that wait for it.

Each public function returns a coroutine function that runs in the client's event loop with its journal subscription
(palermo/client/journal_watch.py). Run it with `Client.watch`, or with `watch_async` from another event loop.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from palermo.client.journal_watch import JournalWatch, OnRecord, Question
from palermo.client.status import (
    ENDED,
    AnyJob,
    JobClient,
    State,
    find_step,
    locate,
    not_found_text,
    since,
    status_at_end,
)
from palermo.contract import clock
from palermo.contract.finding import CANCELLED, JobLocation
from palermo.contract.rows import as_json
from palermo.contract.serialization import FOR_DISPLAY, Accept
from palermo.core.journal_records import JournalLevel, Record, RecordKind
from palermo.core.lifecycle import JobState, StoredResult, result_of_record
from palermo.core.step_values import Value
from palermo.core.times import Duration, in_seconds
from palermo.errors import (
    BrokerUnavailable,
    JobFailed,
    JournalOff,
    NotFound,
    PalermoError,
    ResultNotKept,
    ResultRefused,
    ResultTimeout,
)
from palermo.jobs import registry

#: Seconds between searches for a job whose success may not be recorded, doubled from the first to the last value. After
#: the first miss, the next search follows after the first pause.
_FIRST_PAUSE, _LAST_PAUSE = 1.0, 30.0


def kept_end(client: JobClient, job: AnyJob, timeout: Duration | None) -> Question[Record]:
    """Wait until the job has ended, and return the record of its end.

    Raises the same errors as Job.result if no result is possible.
    """
    check_kept(client, job)
    return lambda watch: _within(watch, job, timeout, _journal_end(watch, client, job, only_kept=True))


def end(
    client: JobClient, job: AnyJob, timeout: Duration | None, on_record: OnRecord | None = None
) -> Question[Record]:
    """Wait until the job has ended, and return the record of its end. Raises the same errors as Job.wait.

    `on_record` is called with the job's journal records in the client's thread.
    """
    check_on(client)
    return lambda watch: _within(watch, job, timeout, _any_end(watch, client, job, on_record))


def ends(
    client: JobClient, jobs: Sequence[AnyJob], timeout: Duration | None, on_record: OnRecord | None = None
) -> Question[list[Record | PalermoError]]:
    """Like `end` for many jobs, in order. If there is an error about a job, it is returned in place of a record."""
    waits = [end(client, job, timeout, on_record) for job in jobs]

    async def ended(watch: JournalWatch) -> list[Record | PalermoError]:
        found: list[Record | PalermoError] = []
        for one in await asyncio.gather(*(wait(watch) for wait in waits), return_exceptions=True):
            if isinstance(one, BaseException) and not isinstance(one, PalermoError):
                raise one
            found.append(one)
        return found

    return ended


def check_on(client: JobClient) -> None:
    """Raise JournalOff if the journal is off."""
    if client.settings.journal == JournalLevel.OFF:
        raise JournalOff(
            'the "journal" setting is "off", so outcomes and results of jobs are not recorded. Set it to'
            ' "failures" or "all", for workers and clients.'
        )


def check_kept(client: JobClient, job: AnyJob) -> None:
    """Raise JournalOff or ResultNotKept if no result is possible."""
    check_on(client)
    if job.keep_result is False:
        raise _not_kept(job.id, "was enqueued without keep_result")


def find_end(client: JobClient, job: AnyJob) -> Question[Record | None]:
    """Return the record of the job's end if it is in the journal. Raises JournalOff, BrokerUnavailable."""
    check_on(client)
    patience = client.settings.publish_timeout

    async def look(watch: JournalWatch) -> Record | None:
        try:
            async with asyncio.timeout(patience):
                return await watch.find_end(job.id, job.created_at, since(job))
        except TimeoutError:
            raise BrokerUnavailable(
                f"the journal was not read within {patience:g} s. {watch.read_error}".strip()
            ) from None

    return look


def load_result(client: JobClient, record: Record) -> Any:
    """Return a job's return value, from the record of its end.

    Raises the same errors as `serialized_result`, and DecodeError.
    """
    value = serialized_result(record)
    if value is None:
        return None
    definition = registry.find(str(record.get("job")))
    classes = {**client.serializers.classes, **(definition.result_classes if definition is not None else {})}
    loaded = client.serializers.load(Value.of(value), classes, accept=Accept.default())
    models = definition.models if definition is not None else None
    return loaded if models is None else models.read_result(loaded)


def serialized_result(record: Record) -> StoredResult | None:
    """Return a job's serialized result, from the record of its end; None if a hook skipped the job.

    Raises JobFailed, ResultNotKept, ResultRefused.
    """
    id = record["id"]
    if record["kind"] != RecordKind.SUCCEEDED:
        raise _failed(record)
    refused = record.get("refused")
    if refused:
        raise ResultRefused(f"job {id} is done, but its result was not kept: {refused}")
    value = result_of_record(record)
    if value is not None or record.get("skipped"):
        return value
    raise _not_kept(id, "is done, but its result was not kept")


def result_as_json(client: JobClient, record: Record) -> Any:
    """Return a job's result as JSON values; None if its end's record contains none. Runs no untrusted code."""
    value = result_of_record(record)
    if value is None:
        return None
    return as_json(client.serializers.load(Value.of(value), FOR_DISPLAY, accept=Accept.default()))


def _failed(record: Record) -> JobFailed:
    found = status_at_end(record)
    why = f"{found.error}: {found.message}" if found.error else found.message
    text = (
        f"job {found.id} {'' if found.state is State.FAILED else 'was '}{found.state.value}{f': {why}' if why else ''}."
    )
    return JobFailed(text, state=found.state.value, error=found.error, message=found.message)


def _not_kept(id: str, what: str) -> ResultNotKept:
    return ResultNotKept(
        f"job {id} {what}. To keep results, declare the job with @palermo.job(keep_result=True) or enqueue it with"
        " .options(keep_result=True)."
    )


async def _within(
    watch: JournalWatch, job: AnyJob, timeout: Duration | None, wait: Coroutine[Any, Any, Record]
) -> Record:
    seconds = in_seconds(timeout)
    try:
        async with asyncio.timeout(seconds):
            return await wait
    except TimeoutError:
        why = (
            f"The journal cannot be read: {watch.read_error}"
            if watch.read_error
            else "`palermo status ID` shows where it is, `palermo queues` whether a worker serves its queue."
        )
        raise ResultTimeout(f"no end of job {job.id} was seen within {seconds:g} s. {why}") from None


async def _journal_end(
    watch: JournalWatch, client: JobClient, job: AnyJob, on_record: OnRecord | None = None, *, only_kept: bool
) -> Record:
    """Wait until the job's end is in the journal.

    With `only_kept`, raises ResultNotKept once it is known that the job keeps no result.
    """

    async def check(known: Record | None, cancelled: bool) -> Record | None:
        if known is None and job.keep_result and not cancelled:
            return None
        if known is not None and known["kind"] != RecordKind.FAILED:
            return known
        place = await locate(await watch.session(), job.id, job.queue)
        if known is not None:
            # It has failed, but may have been requeued since.
            return known if not place.alive or _same_run(place, known) else None
        if only_kept and place.message is not None and place.message.keep_result is False:
            raise _not_kept(job.id, "was enqueued without keep_result")
        if place.gone and job.created_at is None:
            # It may have ended after the journal was read but before the search.
            if (ended := await watch.find_end(job.id, job.created_at, since(job))) is not None:
                return ended
            return await _step_end(watch, client, job, place)
        return _located_end(job, place)

    return await watch.end(job.id, job.created_at, since(job), check=check, on_record=on_record)


async def _step_end(watch: JournalWatch, client: JobClient, job: AnyJob, place: JobLocation) -> Record | None:
    """Wait for the end of a workflow's step that has no job. None once it has one. Raises NotFound for any other id."""
    while (step := await find_step(await watch.session(), job.id)) is not None:
        for kind, state in ENDED.items():
            if step.state is state:
                ended = await watch.find_end(job.id, job.created_at, since(job))
                why = step.reason if kind != RecordKind.SUCCEEDED else ""
                names = {"id": job.id, "job": step.job, "queue": step.queue}
                return ended or {"kind": kind, "at": clock.now(), "reason": why, **names}
        await asyncio.sleep(_FIRST_PAUSE)
        if not (await locate(await watch.session(), job.id, step.queue or "")).gone:
            return None
    raise NotFound(f"job {job.id}: {not_found_text(client, place)}")


async def _any_end(watch: JournalWatch, client: JobClient, job: AnyJob, on_record: OnRecord | None) -> Record:
    """Wait for the end of a job even if its end isn't recorded."""
    recorded = _journal_end(watch, client, job, on_record, only_kept=False)
    if job.keep_result:
        return await recorded
    ways = {asyncio.ensure_future(recorded), asyncio.ensure_future(_disappearance(watch, job))}
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _disappearance(watch: JournalWatch, job: AnyJob) -> Record:
    """Search repeatedly until the job no longer exists. Needed because its success may not be recorded."""
    # `_journal_end` also searches the failed jobs at first, and later failures are in the journal.
    place = await locate(await watch.session(), job.id, job.queue, failed=False)
    if place.gone and job.created_at is None:
        # `_journal_end` reads the journal and decides whether the job ever existed.
        await asyncio.get_running_loop().create_future()
    known = place.running or place.message or job
    missed, pause, last = place.gone, _FIRST_PAUSE, place
    while (found := _located_end(job, place)) is None:
        last = place if place.state else last
        await asyncio.sleep(_FIRST_PAUSE if missed else pause)
        pause = min(2 * pause, _LAST_PAUSE)
        # One search isn't enough: a worker that has just taken the job may not report it yet.
        place = await locate(await watch.session(), job.id, known.queue, failed=missed)
        if missed and place.gone:
            break
        missed = place.gone
    # If the job had failed, the journal would contain that by now or soon.
    if found is None:
        recorded = await watch.find_end(job.id, job.created_at, since(job))
        found = None if recorded is None or _is_earlier(recorded, last) else recorded
    unwritten = {"kind": RecordKind.SUCCEEDED, "at": clock.now(), "id": job.id, "job": known.job, "queue": known.queue}
    return found or {**unwritten, "unwritten": True}


def _same_run(place: JobLocation, ended: Record) -> bool:
    """Whether this record ends the located run. A worker writes the record before it settles the job."""
    return place.worker is not None and place.worker == ended.get("writer") and not _is_earlier(ended, place)


def _is_earlier(ended: Record, place: JobLocation) -> bool:
    """Whether this record ends a run before the located one, after which the job was requeued."""
    if place.running is not None:
        return bool(ended["at"] < place.running.started_at)
    attempt = ended.get("attempt")
    return place.message is not None and attempt is not None and bool(attempt < place.message.attempt)


def _located_end(job: AnyJob, place: JobLocation) -> Record | None:
    """Return an end record for a job that was found failed, or cancelled but not yet dropped by a worker."""
    message = place.message
    if message is None or place.state not in (JobState.FAILED, CANCELLED):
        return None
    about = {"at": clock.now(), "id": job.id, "job": message.job, "queue": message.queue}
    if place.state == CANCELLED:
        return {"kind": RecordKind.CANCELLED, **about}
    if (failure := message.failure) is not None:
        about |= {"at": float(failure.failed_at), "error": failure.exception_class, "message": failure.message}
    return {"kind": RecordKind.FAILED, **about, "attempt": message.attempt}
