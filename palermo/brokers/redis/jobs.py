"""The representation of jobs in Redis: the keys that locate a job, and its message with the headers of RabbitMQ."""

import hashlib
import uuid

import msgpack

from palermo.core.header_json import dumps, message_with
from palermo.core.limits import has_reservation
from palermo.core.message import Message, to_headers
from palermo.core.topics import OCTETS
from palermo.core.topology import DEFAULT_QUEUE, MAX_PRIORITY, is_failed
from palermo.core.unique_keys import UNIQUE_KEY
from palermo.core.workflow import WORKFLOW

#: Priority of a job that has had its turn or got its permit: it precedes all others in its queue.
FRONT_PRIORITY = MAX_PRIORITY + 1

#: Errors of reading a message that another program has changed.
_UNREADABLE = (ValueError, TypeError, AttributeError, msgpack.UnpackException)

#: A job for scripts/publish.lua: queue, tenant, share, priority, "1" if it has a unique key or belongs to a workflow,
#: due time, id and message.
Job = tuple[str, str, str, int, str, str, str, bytes]


def to_job(message: Message, queue: str | None = None) -> Job:
    """The message as a job for this queue, by default its own. Raises EncodeError for a header that can't be stored."""
    queue = message.queue if queue is None else queue
    failed = is_failed(queue)
    later = message.run_at is not None and not failed
    return (
        queue,
        "" if failed else message.tenant,
        "" if message.share is None else repr(message.share),
        FRONT_PRIORITY if later and has_reservation(message) else message.priority,
        "1" if (UNIQUE_KEY in message.extra or WORKFLOW in message.extra) and not failed else "",
        repr(message.run_at) if later else "",
        message.id,
        to_blob(message),
    )


def to_blob(message: Message) -> bytes:
    """The message as bytes that the scripts can read."""
    parts = (
        message.id,
        message.content_type,
        message.content_encoding,
        dumps(to_headers(message)),
        dumps(message.properties) if message.properties else "",
        message.body,
    )
    # Redis's own msgpack, with which the scripts read the id, has one type for text and bytes.
    packed: bytes = msgpack.packb(parts, use_bin_type=False)
    return packed


def from_blob(blob: bytes, taken_from: str | None) -> Message:
    """The message in these bytes. `taken_from` is its queue, or None for a scheduled job.

    Never raises: `defect` describes an unreadable part. One broken job must not block the jobs behind it.
    """
    try:
        message_id, content_type, content_encoding, headers, properties, body = _parts(blob)
    except _UNREADABLE as error:
        queue, wrong = taken_from or DEFAULT_QUEUE, f"the message cannot be read: {error!r}"
        return Message(id=_id_of(blob), queue=queue, job="", body=blob, content_type=OCTETS, defect=wrong)
    return message_with(
        headers,
        properties,
        message_id=message_id,
        content_type=content_type,
        content_encoding=content_encoding,
        body=body,
        taken_from=taken_from,
        new_id=_new_id,
    )


def id_in(blob: bytes) -> str:
    """The id of the message in these bytes."""
    try:
        return _parts(blob)[0]
    except _UNREADABLE:
        return _id_of(blob)


def _parts(blob: bytes) -> tuple[str, str, str, str, str, bytes]:
    """Id, content type, content encoding, headers, properties and body. Raises _UNREADABLE."""
    *texts, body = msgpack.unpackb(blob, raw=True)
    id, content_type, content_encoding, headers, properties = (text.decode() for text in texts)
    if not isinstance(body, bytes):
        raise TypeError(f"the body is {type(body).__name__}")
    return id, content_type, content_encoding, headers, properties, body


def _id_of(blob: bytes) -> str:
    """An id for an unreadable message, always the same for the same bytes."""
    return f"unreadable-{hashlib.sha256(blob).hexdigest()[:16]}"


def _new_id() -> str:
    return str(uuid.uuid4())
