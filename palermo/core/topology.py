"""Names: which are allowed, and which AMQP object each of them stands for.

The rules are those of docs/wire.md, "Topology". Nothing here talks to a broker.
"""

from palermo.errors import IdInvalid, QueueNameInvalid, SettingInvalid

DEFAULT_EXCHANGE = "palermo"
DEFAULT_QUEUE = "jobs"
FAILED_QUEUE = "failed"

#: Before a queue's name: its own failed jobs, where the setting failed_per_queue keeps them apart.
FAILED_PREFIX = "failed:"

#: What a queue on RabbitMQ may be; the first is the default.
CLASSIC, QUORUM = QUEUE_TYPES = ("classic", "quorum")

#: Before a queue's name: the AMQP queue is called exactly what follows, on any exchange.
LITERAL = "="

#: The highest priority of a job within its queue; 0 is the lowest, and that of jobs without one. A classic queue keeps
#: a queue in itself for each, and RabbitMQ advises single digits.
MAX_PRIORITY = 9

#: What a classic queue is made of that has priorities, and what queues may be migrated to.
PRIORITY = "priority"
MIGRATABLE = (*QUEUE_TYPES, PRIORITY)

#: AMQP 0-9-1 short strings hold 255 bytes; half is left for the exchange's prefix and our own suffixes.
MAX_QUEUE_NAME_BYTES = 127
MAX_ID_BYTES = 255


def check_queue_name(name: object) -> str:
    """The name, if it may name a queue.

    Raises QueueNameInvalid otherwise, saying which rule it breaks.
    """
    rule = "Names are 1 to 127 bytes of UTF-8 without blanks at the ends"
    if not isinstance(name, str):
        raise QueueNameInvalid(f"queue name {name!r} is not text. {rule}.")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise QueueNameInvalid(f"queue name {name!r} cannot be written as UTF-8. {rule}.") from None
    if not 1 <= size <= MAX_QUEUE_NAME_BYTES:
        raise QueueNameInvalid(f"queue name {name[:40]!r} has {size} bytes. {rule}.")
    if name != name.strip():
        raise QueueNameInvalid(
            f"queue name {name!r} begins or ends in a blank. {rule}; trim it where the job is declared."
        )
    for prefix in ("amq.", "~", "palermo.~"):
        if name.startswith(prefix):
            raise QueueNameInvalid(
                f"queue name {name!r} starts with {prefix!r}, which is kept for the broker and Palermo. Choose another."
            )
    return name


def is_failed(queue: str) -> bool:
    """Whether a queue holds failed jobs: `failed`, or one of `failed:<queue>`."""
    return queue == FAILED_QUEUE or queue.startswith(FAILED_PREFIX)


def failed_queue(queue: str, *, per_queue: bool) -> str:
    """Where the failed jobs of a queue go."""
    return f"{FAILED_PREFIX}{queue}" if per_queue else FAILED_QUEUE


def check_job_queue(name: object) -> str:
    """The name, if jobs may be enqueued to it and workers may serve it; those of failed jobs are neither."""
    checked = check_queue_name(name)
    if is_failed(checked):
        raise QueueNameInvalid(
            f"queue {checked!r} holds failed jobs; no job is enqueued to it and no worker serves it."
            " Use `palermo failed requeue` to run its jobs again."
        )
    return checked


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
    subscribes to events has its full name in any case, for the sake of other programs.
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
