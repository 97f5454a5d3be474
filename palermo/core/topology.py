"""Names: the rules for them, and the AMQP object that each of them stands for.

The rules are those of docs/internals/wire.md, "Topology". Nothing here talks to a broker.
"""

import re

from palermo.errors import IdInvalid, QueueNameInvalid, SettingInvalid

DEFAULT_EXCHANGE = "palermo"
DEFAULT_QUEUE = "jobs"
FAILED_QUEUE = "failed"

#: The prefix of a queue's own queue of failed jobs, where the setting failed_per_queue keeps them apart.
FAILED_PREFIX = "failed:"

#: The types of a queue on RabbitMQ; the first is the default.
CLASSIC, QUORUM = QUEUE_TYPES = ("classic", "quorum")

#: The prefix of a queue name that is taken literally: the AMQP queue is called what follows, on any exchange.
LITERAL = "="

#: The highest priority of a job within its queue; 0 is the lowest, and that of jobs without one. A classic queue keeps
#: an inner queue for each priority, and RabbitMQ advises single digits.
MAX_PRIORITY = 9

#: The name of a classic queue with priorities as a type, and the types that queues may be migrated to.
PRIORITY = "priority"
MIGRATABLE = (*QUEUE_TYPES, PRIORITY)

#: AMQP 0-9-1 short strings hold 255 bytes; half is left for the exchange's prefix and our own suffixes.
MAX_QUEUE_NAME_BYTES = 127
MAX_ID_BYTES = 255

#: An id as Palermo makes it.
_MADE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: The beginnings that no queue name may have, nor a name behind LITERAL: the broker uses them for its own names, or
#: Palermo for its own on any exchange, since several exchanges may share one virtual host.
_RESERVED = r"amq\.|([^.]*\.)?~"

#: A queue of failed jobs of any exchange, written with LITERAL.
_FAILED_OF_ANY = rf"{LITERAL}([^.]*\.)?{FAILED_QUEUE}(:|\Z)"


#: C0 and C1 controls, DEL, and the separators of lines and paragraphs. RabbitMQ removes line breaks from a queue's name
#: and names the rest in its answer, for which no caller waits.
_CONTROLS = frozenset(map(chr, (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)))


def has_controls(name: str) -> bool:
    """Whether a name has a control character or a line separator in it."""
    return not _CONTROLS.isdisjoint(name)


def is_queue_name(name: object) -> bool:
    """Whether this may name a queue."""
    try:
        check_queue_name(name)
    except QueueNameInvalid:
        return False
    return True


def check_queue_name(name: object, *, controls: bool = False) -> str:
    """The name, if it may name a queue; with `controls` also one with controls, as another program may have made.

    Raises QueueNameInvalid otherwise; its text says which rule the name breaks.
    """
    rule = "Names are 1 to 127 bytes of UTF-8 without control characters or spaces at either end"
    if not isinstance(name, str):
        raise QueueNameInvalid(f"queue name {name!r} is not text. {rule}.")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise QueueNameInvalid(f"queue name {name!r} cannot be written as UTF-8. {rule}.") from None
    if not 1 <= size <= MAX_QUEUE_NAME_BYTES:
        raise QueueNameInvalid(f"queue name {name[:40]!r} has {size} bytes. {rule}.")
    on_broker = name.removeprefix(LITERAL)
    if reserved := re.match(_RESERVED, on_broker):
        raise QueueNameInvalid(
            f"queue name {name!r} starts with {reserved[0]!r}, which is reserved for the broker and Palermo."
            " Choose another."
        )
    if controls and has_controls(name):
        return name
    if not on_broker:
        raise QueueNameInvalid(f"queue name {name!r} has nothing after the {LITERAL!r}. {rule}.")
    if on_broker != on_broker.strip() or name != name.strip():
        raise QueueNameInvalid(
            f"queue name {name!r} begins or ends with a space. {rule}; trim it where the job is declared."
        )
    if has_controls(name):
        raise QueueNameInvalid(f"queue name {name!r} contains a control character or a line break. {rule}.")
    return name


def is_failed(queue: str) -> bool:
    """Whether a queue holds failed jobs: `failed`, or one of `failed:<queue>`."""
    return queue == FAILED_QUEUE or queue.startswith(FAILED_PREFIX)


def failed_queue(queue: str, *, per_queue: bool) -> str:
    """The queue that takes the failed jobs of a queue."""
    return f"{FAILED_PREFIX}{queue}" if per_queue else FAILED_QUEUE


def check_job_queue(name: object) -> str:
    """The name, if jobs may be enqueued to it and workers may serve it: not a queue of failed jobs.

    Raises QueueNameInvalid.
    """
    checked = check_queue_name(name)
    if is_failed(checked) or re.match(_FAILED_OF_ANY, checked):
        raise QueueNameInvalid(
            f"queue {checked!r} holds failed jobs; no job is enqueued to it and no worker serves it."
            " Use `palermo failed requeue` to run its jobs again."
        )
    return checked


#: What `palermo worker -q` reads as a pattern or as a list, wherever it stands in a name and at its beginning.
_SELECTS, _SELECTS_FIRST = frozenset("*?[,"), ("!", LITERAL)


def check_new_queue(name: object) -> str:
    """The name, if a job may be declared with it and enqueued to it: one that `palermo worker -q` reads as it is.

    A queue that has another name already is still shown, served, purged and deleted. Raises QueueNameInvalid.
    """
    checked = check_job_queue(name)
    if _SELECTS.isdisjoint(checked) and not checked.startswith(_SELECTS_FIRST):
        return checked
    raise QueueNameInvalid(
        f"queue name {checked!r} has a character with a meaning in `palermo worker -q`. Choose a name without `*`, `?`,"
        " `[` and `,` that does not begin with `!` or `=`."
    )


def check_exchange_name(name: object) -> str:
    """The name, if it may name the exchange: a queue name without dots.

    Raises SettingInvalid. A dot would make `<exchange>.<queue>` ambiguous.
    """
    try:
        checked = check_queue_name(name)
    except QueueNameInvalid as error:
        raise SettingInvalid(str(error).replace("queue name", "exchange name", 1)) from None
    if "." in checked:
        raise SettingInvalid(f"exchange name {checked!r} has a dot; choose one without.")
    return checked


def is_made_id(text: str) -> bool:
    """Whether a text is an id as Palermo makes it, and so no beginning of an id."""
    return _MADE_ID.fullmatch(text) is not None


def check_id(id: object) -> str:
    """The id, if it may be a job's: text of 1 to 255 bytes. Raises IdInvalid."""
    rule = "An id is text of 1 to 255 bytes"
    if not isinstance(id, str):
        raise IdInvalid(f"job id {id!r} is not text. {rule}.")
    try:
        size = len(id.encode())
    except UnicodeEncodeError:
        raise IdInvalid(f"job id {id!r} cannot be written as UTF-8. {rule}.") from None
    if not 1 <= size <= MAX_ID_BYTES:
        raise IdInvalid(f"job id {id[:40]!r} has {size} bytes. {rule}.")
    return id


def amqp_queue(exchange: str, queue: str) -> str:
    """The AMQP queue that holds a Palermo queue: its own name, prefixed where the exchange is not the default one.

    The prefix keeps two systems in one virtual host from sharing `failed`. The queue of a group that
    subscribes to events has its full name on any exchange, for the sake of other programs.
    """
    if exchange == DEFAULT_EXCHANGE or queue.startswith(f"{exchange}_"):
        return queue
    return queue.removeprefix(LITERAL) if queue.startswith(LITERAL) else f"{exchange}.{queue}"


def internal(exchange: str, name: str) -> str:
    """The AMQP name of something Palermo keeps for itself; never a legal job queue."""
    return f"{exchange}.~{name}"


def worker_tag(pid: int, host: str, slot: int) -> str:
    """The consumer tag of a worker's slot, numbered from 1: `pid:<parent's pid>@<host>/worker-<n>`."""
    return f"pid:{pid}@{host}/worker-{slot}"


def worker_of(slot: str) -> str:
    """The id of the worker that has this slot."""
    return slot.rpartition("/")[0] or slot
