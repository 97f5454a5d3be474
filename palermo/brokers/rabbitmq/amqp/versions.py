"""Findings and queue arguments that depend on the versions of the server and of pika."""

import re
import shlex

from palermo.contract.broker import Finding
from palermo.core.topology import CLASSIC, MAX_PRIORITY, PRIORITY, QUORUM

Version = tuple[int, ...]

#: The supported RabbitMQ versions: from the first one on, up to but excluding the other.
DESIGNED: tuple[Version, Version] = ((3, 10), (5,))

#: The same of pika: the adapter depends on its protocol machine (transport.py).
PIKA: tuple[Version, Version] = ((1, 3, 2), (1, 5))

#: Maximum number of deliveries of a job by a quorum queue, which then drops it. Up to 4.2 every requeue counts, so it
#: must be out of reach; the default from 4.0 on is 20. It can't be -1: that is unlimited from 4.0 on, but 3.10 then
#: drops a job at its first requeue (measured, as for 0).
DELIVERY_LIMIT = 1_000_000

#: Milliseconds that a job may run, as a queue argument: the maximum for signed 32 bits, 24 days. Servers from 3.12 on
#: enforce it; earlier ones store it for a later upgrade. 0 means immediately or never, depending on the version.
CONSUMER_TIMEOUT_MS = 2**31 - 1

#: Seconds below which too short, a busy machine loses healthy connections, and above which dead ones are noticed late.
_HEARTBEATS = (5, 300)


def parse(text: str) -> Version:
    """The numbers at the start of a version, such as (3, 10, 8) for "3.10.8+dirty"; empty if there are none."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def server(text: str, product: str = "RabbitMQ") -> Finding:
    """Whether this adapter supports the server."""
    version, (first, beyond) = parse(text), DESIGNED
    if product != "RabbitMQ":
        return Finding.warning(
            "server version", f"{product} {text}, not RabbitMQ", "Palermo is tested with RabbitMQ 3.10 to 4.x only."
        )
    if version < first:
        return Finding.problem(
            "server version",
            f"RabbitMQ {text} is older than 3.10",
            "Upgrade it; Palermo needs the streams and quorum queues of 3.10.",
        )
    if version >= beyond:
        return Finding.warning(
            "server version",
            f"RabbitMQ {text} is newer than the versions that this Palermo supports",
            "Upgrade Palermo if a newer version is available.",
        )
    return Finding.ok("server version", f"RabbitMQ {text}; Palermo supports 3.10 to 4.x")


def client(text: str) -> Finding:
    """Whether the adapter supports the installed pika."""
    if PIKA[0] <= parse(text) < PIKA[1]:
        return Finding.ok("client library", f"pika {text}")
    return Finding.problem(
        "client library", f"pika {text} is installed; Palermo supports 1.3.2 to 1.4", "pip install 'pika<1.5'"
    )


def heartbeat(seconds: int) -> Finding:
    """Whether a lost connection is detected in time, and a healthy one kept."""
    low, high = _HEARTBEATS
    if not seconds:
        return Finding.warning(
            "heartbeat", "off, so a lost connection is detected late or never", "Add ?heartbeat=60 to the URL."
        )
    if not low <= seconds <= high:
        why = (
            "too short, so a busy machine loses healthy connections"
            if seconds < low
            else "too long, so a lost connection is detected late"
        )
        return Finding.warning("heartbeat", f"{seconds} s: {why}", "Add ?heartbeat=60 to the URL.")
    return Finding.ok("heartbeat", f"{seconds} s, also during long jobs")


def arguments(kind: str, text: str) -> dict[str, str | int]:
    """The arguments for declaring a queue of this type on this version; "priority" means classic with priorities."""
    found: dict[str, str | int] = {"x-queue-type": CLASSIC if kind == PRIORITY else kind}
    if kind == PRIORITY:
        found["x-max-priority"] = MAX_PRIORITY
    if kind == QUORUM:
        return found | {"x-delivery-limit": DELIVERY_LIMIT, "x-consumer-timeout": CONSUMER_TIMEOUT_MS}
    version = parse(text)
    # From 4.3 on classic queues have no such limit, and RabbitMQ refuses the argument.
    return found | {"x-consumer-timeout": CONSUMER_TIMEOUT_MS} if version and version < (4, 3) else found


def loses_consumers(text: str) -> bool:
    """Whether deleting a quorum queue may silently end its consumers, even if the queue is recreated.

    Before 4.0 RabbitMQ's channel may subscribe the consumers to the new queue by itself, without basic.cancel. It then
    ignores that queue's deliveries, which remain unacknowledged until the channel closes.
    """
    return parse(text) < (4,)


def cancels_late_consumers(text: str) -> bool:
    """Whether the server cancels a quorum queue's consumer when it requeues a job that runs too long.

    The server leaves the channel open, and a second consumer with the same tag would end the connection. Before 4.3 the
    server closes the channel instead.
    """
    return parse(text) >= (4, 3)


def ends_connections(text: str) -> bool:
    """Whether the server closes the connection of a session that uses a broken stream, instead of the channel."""
    return parse(text) >= (4, 3)


def forgets_new_queues(text: str) -> bool:
    """Whether a killed server may lose a queue created in the last two seconds.

    Before 4.3 the server's database may be Mnesia, which buffers its log for two seconds. Khepri writes immediately.
    """
    return parse(text) < (4, 3)


def consumer_timeout(text: str) -> Finding:
    """The finding about the time that a job may run before the server requeues it.

    AMQP doesn't expose the server's setting.
    """
    check, version = "consumer_timeout", parse(text)
    days = CONSUMER_TIMEOUT_MS // 86_400_000
    if version >= (4, 3):
        return Finding.ok(
            check,
            f"no time limit for jobs in classic queues; {days} days in the quorum queues that Palermo creates",
        )
    if version >= (3, 12):
        policy = """rabbitmqctl set_policy long-jobs '^QUEUE$' '{"consumer-timeout": 14400000}' --apply-to queues"""
        return Finding.ok(
            check,
            f"{days} days for jobs in the queues that Palermo creates, unless a policy sets less; from other queues"
            " the server requeues a job after 30 minutes",
            f"For other queues: {policy} (milliseconds).",
        )
    return Finding.warning(
        check,
        "the server requeues a job that runs longer than consumer_timeout (default: 30 minutes); before 3.12 it cannot"
        " be set per queue",
        "If jobs run longer than 30 minutes, set consumer_timeout = 14400000 (milliseconds) in rabbitmq.conf and"
        " restart RabbitMQ.",
    )


def _migrate(queue: str, kind: str) -> str:
    """The command that changes a queue's type, quoted for a shell."""
    return f"palermo migrate {shlex.quote(queue)} --type {kind}"


def without_priorities(queue: str, kind: str, text: str) -> str:
    """The reason why a priority has little or no effect in this queue, which was created without priorities."""
    if kind != QUORUM:
        return f"it was created without priorities; `{_migrate(queue, PRIORITY)}` recreates it with them"
    if parse(text) >= (4, 3):
        return ""
    if parse(text) >= (4,):
        return (
            "before RabbitMQ 4.3 a quorum queue has only two priorities, below 5 and from 5 up; two of three jobs are"
            " from the upper one"
        )
    return f"before RabbitMQ 4.0 quorum queues have no priorities; `{_migrate(queue, PRIORITY)}` makes it classic"


def of_quorum(kind: str, text: str) -> str:
    """The sentence about priorities that findings about a quorum queue include; "" for other types."""
    if kind != QUORUM:
        return ""
    version = parse(text)
    known = "32 of them" if version >= (4, 3) else "two" if version >= (4,) else "none before RabbitMQ 4.0"
    return f"; priorities: {known}"


def no_priorities(queue: str, what: str) -> Finding:
    """The finding for a classic queue without priorities that contains jobs with a priority."""
    return Finding.warning(
        f"queue {queue}",
        f"{what}, without priorities; it has jobs with a priority, which has no effect",
        f"{_migrate(queue, PRIORITY)} recreates it with priorities and keeps its jobs.",
    )


def other_type(queue: str, *, ours: str, theirs: str) -> Finding:
    """The finding for a queue with a type other than queue_type."""
    return Finding.warning(
        f"queue {queue}",
        f"a {theirs} queue, although queue_type is {ours}; used unchanged",
        f"{_migrate(queue, ours)} changes it and keeps its jobs. Or set queue_type to {theirs}.",
    )


def delivery_limit(queue: str, said: str, text: str) -> Finding:
    """How a quorum queue that Palermo did not create treats jobs that are delivered again and again."""
    check, said = f"queue {queue}", f"a quorum queue, used unchanged, with x-delivery-limit {said}"
    if said.endswith("none") and parse(text) < (4,):
        return Finding.ok(check, said)
    return Finding.warning(
        check,
        f"{said}: a job that is delivered more often is dropped. Up to RabbitMQ 4.2 every requeue counts; from 4.0 the"
        " default is 20",
        f"{_migrate(queue, CLASSIC)}, then --type quorum, recreates it and keeps its jobs.",
    )
