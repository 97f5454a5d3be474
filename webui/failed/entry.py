"""A failed job in the index, built from its message and converted back to a message.

Most of a failed job's data is its traceback. Failures of one kind share all of it except the end, which contains the
message. The index therefore stores the common frames once, and only the end for each job.
"""

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from palermo.contract.rows import MAX_SHOWN
from palermo.core.failure import (
    MAX_STACK_TRACE,
    Failure,
    attempts_header,
    attempts_in,
    cut_middle,
    fingerprint,
    printable,
)
from palermo.core.message import EVENT_ID, PARENT, TOPIC, Message
from palermo.views.facts import PreviewOf
from palermo.webui import tuning

#: The largest integer in SQLite.
_MOST = 2**63 - 1

#: Separates the texts that a filter searches, so that no match spans two of them.
_GAP = "\x1f"


class Entry(Struct, frozen=True, kw_only=True):
    """A failed job in the index. Its texts are printable."""

    id: str
    #: When it failed, in Unix seconds; 0 if unknown.
    at: int
    retries: int | None
    #: Whether it had been requeued before.
    requeued: bool
    queue: str
    job: str
    error: str
    #: None for a job without an error.
    fingerprint: str | None
    frames: str
    ending: str
    words: str
    #: This and the following fields are only for the job's own page: see DETAIL in index.py.
    message: str
    created_at: int | None
    preview: str | None
    worker: str | None
    tenant: str | None
    #: The topic of the event that it handles.
    topic: str | None
    #: The job that enqueued it.
    parent: str | None
    content_type: str
    content_encoding: str
    arguments: str
    #: The errors of its earlier runs, as JSON, or "".
    attempts: str
    #: None for a body above the display limit, which is read from the queue when needed.
    body: bytes | None


class EntryBuilder:
    """Builds entries from messages. Caches fingerprints, since computing one means parsing a traceback line by line."""

    def __init__(self, search_text: PreviewOf) -> None:
        """`search_text` returns a message's arguments as text without hidden values, so that searches don't find
        them.
        """
        self._search_text = search_text
        self._kinds: dict[tuple[str, str, int], str] = {}

    def entry(self, message: Message) -> Entry:
        """Return the entry of a failed job's message."""
        failure = message.failure
        text = printable(failure.message) if failure else ""
        trace = printable(failure.stack_trace) if failure else ""
        frames, ending = split(cut_middle(trace, MAX_STACK_TRACE) if len(trace) > MAX_STACK_TRACE else trace, text)
        shown = None if message.preview is None else printable(message.preview)
        id = printable(message.id)
        return Entry(
            id=id,
            at=_bounded(failure.failed_at) or 0 if failure else 0,
            retries=_bounded(message.retries),
            requeued=message.requeued,
            queue=printable(message.queue),
            job=printable(message.job),
            error=printable(failure.exception_class) if failure else "",
            fingerprint=self._fingerprint(message.job, failure, frames, ending) if failure else None,
            frames=frames,
            ending=ending,
            words=fold(_GAP.join((id, (ending or text)[: tuning.TEXT], self._searched(message)[: tuning.TEXT]))),
            message=text,
            created_at=_bounded(message.created_at),
            preview=shown,
            worker=None if message.worker is None else printable(message.worker),
            tenant=printable(message.tenant) or None,
            topic=printable(message.topic) or None,
            parent=printable(message.parent) or None,
            content_type=printable(message.content_type),
            content_encoding=printable(message.content_encoding),
            arguments=printable(message.arguments),
            attempts=json.dumps(attempts_header(message.attempts)) if message.attempts else "",
            body=message.body if len(message.body) <= MAX_SHOWN else None,
        )

    def _searched(self, message: Message) -> str:
        text = self._search_text(message)
        return "" if text is None else printable(text)

    def _fingerprint(self, job: str, failure: Failure, frames: str, ending: str) -> str:
        if "at " in ending or 'File "' in ending:
            return fingerprint(job, failure)  # the message may contain text that looks like a frame
        key = (job, failure.exception_class, hash(frames))
        found = self._kinds.get(key)
        if found is None:
            if len(self._kinds) >= tuning.CACHED:
                self._kinds.clear()
            found = self._kinds[key] = fingerprint(job, failure)
        return found


def split(trace: str, message: str) -> tuple[str, str]:
    """Split a traceback before the line in which its message begins."""
    at = trace.rfind(message) if message else len(trace.rstrip())
    if at < 0:
        return trace, ""
    start = trace.rfind("\n", 0, at) + 1
    return trace[:start], trace[start:]


def fold(text: str) -> str:
    """Return the text with case folded, for comparing in filters."""
    return text if text.isascii() and text.islower() else text.casefold()


def restored(values: Sequence[Any]) -> Message:
    """Return the message of a row: id, queue, job, at, retries, error, has_error, frames, then DETAIL of index.py."""
    id, queue, job, at, retries, error, has_error, frames, _, created_at, text, ending, *rest = values
    preview, worker, tenant, topic, parent, content_type, content_encoding, arguments, tried, body = rest
    failure = Failure(exception_class=error, message=text, stack_trace=frames + ending, failed_at=at)
    extra = {} if topic is None else {TOPIC: topic, EVENT_ID: id.rpartition("@")[0]}
    extra |= {} if parent is None else {PARENT: parent}
    return Message(
        id=id,
        queue=queue,
        job=job,
        # A missing body must differ from an empty one, whose preview would be shown with hidden values.
        body=b"-" if body is None else body,
        content_type=content_type,
        content_encoding="omitted" if body is None else content_encoding,
        arguments=arguments,
        created_at=created_at,
        retries=retries,
        preview=preview,
        worker=worker,
        failure=failure if has_error else None,
        attempts=attempts_in(json.loads(tried)) if tried else (),
        extra=extra,
        tenant=tenant or "",
    )


def _bounded(number: int | None) -> int | None:
    return None if number is None else max(-_MOST, min(_MOST, number))
