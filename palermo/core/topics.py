"""Events: topics, the patterns of subscriptions, the names of exchanges and queues, and the jobs that events become.

A publisher sends an event to the fanout exchange `<prefix>_gateway`. From there it goes to the topic exchange
`<prefix>_distributor`, which routes it to the queue `<prefix>_<group>` of each group with a matching pattern. There it
is a job with the group's name. See docs/internals/wire.md, "Events".
"""

from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from palermo.core.message import EVENT_ID, JSON, TOPIC, Message
from palermo.core.topology import DEFAULT_EXCHANGE, LITERAL, MAX_ID_BYTES, check_job_queue, check_new_queue
from palermo.errors import QueueNameInvalid, TopicInvalid

#: Maximum size of a routing key, which is an AMQP short string.
MAX_TOPIC_BYTES = 255

#: The wildcards: exactly one word, and any number of words.
ONE, ANY = "*", "#"

#: Media type of an event without one. It is read as JSON if it decodes, otherwise as bytes.
OCTETS = "application/octet-stream"

_GATEWAY, _DISTRIBUTOR = "_gateway", "_distributor"


class Event(Struct, frozen=True):
    """Something that happened, published to all groups that subscribe to it."""

    topic: str
    #: The payload and its headers, without a queue or a job.
    message: Message


def gateway(prefix: str) -> str:
    """The exchange to which events are published."""
    return f"{prefix}{_GATEWAY}"


def distributor(prefix: str) -> str:
    """The exchange that routes events to the groups with matching patterns."""
    return f"{prefix}{_DISTRIBUTOR}"


def group_queue(exchange: str, prefix: str, group: str) -> str:
    """The queue of a group; on RabbitMQ it is called `<prefix>_<group>`.

    Raises QueueNameInvalid.
    """
    name = check_job_queue(f"{prefix}_{group}")
    return name if exchange in (DEFAULT_EXCHANGE, prefix) else check_job_queue(f"{LITERAL}{name}")


@lru_cache(maxsize=1_024)
def group_of(source: str, queue: str) -> str:
    """The group whose queue holds a message published to the exchange `source`; "" if the message isn't an event."""
    for suffix in (_GATEWAY, _DISTRIBUTOR):
        if source.endswith(suffix):
            start = f"{source.removesuffix(suffix)}_"
            name = queue.removeprefix(LITERAL)
            return name.removeprefix(start) if name.startswith(start) else ""
    return ""


def check_group(group: object) -> str:
    """Return the name if it is valid for a group. Raises TopicInvalid."""
    if not isinstance(group, str) or not group:
        raise TopicInvalid(f'group {group!r} is not a name; give text, such as group="notifications".')
    try:
        return check_job_queue(group)
    except QueueNameInvalid as error:
        raise TopicInvalid(str(error).replace("queue name", "group", 1)) from None


def check_new_group(group: object) -> str:
    """Return the name if a new group may have it.

    Raises TopicInvalid, for example if `-q` would not read it literally.
    """
    try:
        return check_new_queue(check_group(group))
    except QueueNameInvalid as error:
        raise TopicInvalid(str(error).replace("queue name", "group", 1)) from None


def check_topic(topic: object) -> str:
    """Return the topic if events may be published to it: words separated by dots, `tracker.artifact.updated`.

    Raises TopicInvalid.
    """
    for word in _words(topic):
        if ONE in word or ANY in word:
            raise TopicInvalid(
                f"topic {topic!r} has a wildcard, but an event has exactly one topic. Only subscriptions have patterns."
            )
    return str(topic)


def check_pattern(pattern: object) -> str:
    """Return the pattern if it is valid: a topic with `*` for one word, `#` for any number of words.

    Raises TopicInvalid.
    """
    for word in _words(pattern):
        if word not in (ONE, ANY) and (ONE in word or ANY in word):
            raise TopicInvalid(
                f"pattern {pattern!r} has a wildcard within a word, where it has no effect. `*` stands for one whole"
                " word, `#` for any number of words."
            )
    return str(pattern)


def matches(pattern: str, topic: str) -> bool:
    """Whether the pattern matches the topic, by the rules of AMQP."""
    words = pattern.split(".") if pattern else []
    at = _reached(words, {0})
    for word in topic.split(".") if topic else []:
        stay = {place for place in at if place < len(words) and words[place] == ANY}
        go = {place + 1 for place in at if place < len(words) and words[place] in (ONE, word)}
        at = _reached(words, stay | go)
    return len(words) in at


def as_job(event: Message, *, group: str, topic: str, run: str = "") -> Message:
    """The job that an event becomes in a group. A job or topic in the event's own headers is ignored.

    Each group gets its own job with its own id. `run`, for a replay, makes that id a new one.
    """
    own = f"@{group}{f'~{run}' if run else ''}"
    id = f"{event.id}{own}"
    if len(id.encode()) > MAX_ID_BYTES:
        from hashlib import sha256

        id = f"{sha256(event.id.encode()).hexdigest()}{own}"
    return replace(event, id=id, job=group, extra={**event.extra, TOPIC: topic, EVENT_ID: event.id})


def is_untyped(message: Message) -> bool:
    """Whether another program published this message without a media type, or with a meaningless one."""
    return message.content_type == OCTETS and not message.content_encoding


def with_media_type(message: Message) -> Message:
    """An untyped message as JSON if it decodes as JSON; any other message unchanged."""
    if not is_untyped(message):
        return message
    import json  # takes milliseconds to import, which `import palermo` should not

    try:
        json.loads(message.body)
    except (ValueError, RecursionError):
        return message
    return replace(message, content_type=JSON)


def _reached(words: list[str], at: set[int]) -> set[int]:
    """These positions in a pattern, and the position after each `#` among them, which may match no word."""
    for place, word in enumerate(words):
        if place in at and word == ANY:
            at.add(place + 1)
    return at


def _words(topic: object) -> list[str]:
    rule = "A topic is words separated by dots, such as 'tracker.artifact.updated', up to 255 bytes"
    if not isinstance(topic, str) or not topic:
        raise TopicInvalid(f"topic {topic!r} is not a string. {rule}.")
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        raise TopicInvalid(f"topic {topic!r} cannot be encoded as UTF-8. {rule}.") from None
    words = topic.split(".")
    if size > MAX_TOPIC_BYTES or topic != topic.strip() or not all(words):
        raise TopicInvalid(f"topic {topic[:80]!r} ({size} bytes) is invalid. {rule}, none of them empty.")
    return words
