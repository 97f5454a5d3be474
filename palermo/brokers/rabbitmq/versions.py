"""What follows from the server's version, from pika's, and from what a connection agreed on; pure."""

import re

from palermo.broker import Finding

Version = tuple[int, ...]

#: RabbitMQ from the first of these on and below the second.
DESIGNED: tuple[Version, Version] = ((3, 10), (5,))

#: pika likewise: the adapter builds on its protocol machine (transport.py).
PIKA: tuple[Version, Version] = ((1, 3, 2), (1, 5))

#: Seconds below which a busy machine loses healthy connections, and above which dead ones stay unnoticed.
_HEARTBEATS = (5, 300)


def parse(text: str) -> Version:
    """The numbers a version begins with: (3, 10, 8) for "3.10.8+dirty"; empty where there are none."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def server(text: str, product: str = "RabbitMQ") -> Finding:
    """Whether this adapter is made for the server."""
    version, (first, beyond) = parse(text), DESIGNED
    if product != "RabbitMQ":
        return Finding.warning(
            "server version", f"{product} {text}, not RabbitMQ", "Palermo is tested with RabbitMQ 3.10 to 4.x only."
        )
    if version < first:
        return Finding.problem(
            "server version", f"RabbitMQ {text} is older than 3.10", "Upgrade it: streams and quorum queues need it."
        )
    if version >= beyond:
        return Finding.warning(
            "server version", f"RabbitMQ {text} is newer than this Palermo knows", "Look for a newer Palermo."
        )
    return Finding.ok("server version", f"RabbitMQ {text}; Palermo is made for 3.10 to 4.x")


def client(text: str) -> Finding:
    """Whether the adapter fits the pika that is installed."""
    if PIKA[0] <= parse(text) < PIKA[1]:
        return Finding.ok("client library", f"pika {text}")
    return Finding.problem(
        "client library", f"pika {text} is outside of 1.3.2 to 1.4", "Install one of these: pip install 'pika<1.5'."
    )


def heartbeat(seconds: int) -> Finding:
    """Whether a lost connection is noticed in time, and a healthy one kept."""
    low, high = _HEARTBEATS
    if not seconds:
        return Finding.warning(
            "heartbeat", "off: a connection that is cut is noticed late, or never", "Add ?heartbeat=60 to the URL."
        )
    if not low <= seconds <= high:
        why = "a busy machine loses healthy connections" if seconds < low else "a dead connection stays unnoticed long"
        return Finding.warning("heartbeat", f"{seconds} s: {why}", "Add ?heartbeat=60 to the URL.")
    return Finding.ok("heartbeat", f"{seconds} s, kept by the worker's parent however long a job runs")


def consumer_timeout(text: str) -> Finding:
    """How long a job may run before the server takes it back; over AMQP the server does not tell what is set."""
    version = parse(text)
    if version >= (4, 3):
        return Finding.ok(
            "consumer_timeout",
            "only for quorum queues from 4.3 on; jobs in classic queues may run as long as they need",
        )
    said = (
        "the server takes a job back that runs longer than its consumer_timeout, looked at every minute, 30 minutes"
        " unless it is set: such a job runs again"
    )
    if version >= (3, 12):
        policy = """rabbitmqctl set_policy long-jobs '^QUEUE$' '{"consumer-timeout": 14400000}' --apply-to queues"""
        return Finding.warning(
            "consumer_timeout", said, f"For queues with jobs of more than 30 minutes: {policy} (milliseconds)."
        )
    return Finding.warning(
        "consumer_timeout",
        f"{said}; before 3.12 it cannot be set per queue",
        "With jobs of more than 30 minutes: consumer_timeout = 14400000 (milliseconds) in rabbitmq.conf; restart it.",
    )


def quorum(queue: str, text: str) -> Finding:
    """What a quorum queue does with jobs that are handed out again and again."""
    check, said = f"queue {queue}", f"is a quorum queue and used as it is; its jobs cannot be listed ({text})"
    if (4,) <= parse(text) < (4, 3):
        return Finding.warning(
            check,
            f"{said}; a job handed out more than x-delivery-limit times, 20 unless set, is dropped, and every give-back"
            " counts",
            f"Set it high: rabbitmqctl set_policy palermo-{queue} '^{queue}$'"
            """ '{"delivery-limit": 1000000}' --apply-to quorum_queues.""",
        )
    return Finding.ok(check, said)
