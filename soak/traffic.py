"""The publishing programs of a soak. Each produces one kind of job and has its own random generator."""

import random
import struct
import time
from collections.abc import Sequence
from typing import Any, Protocol

from palermo.client.client import Client
from palermo.errors import BrokerError, PublishRefused
from palermo.settings.settings import Settings
from soak.records import Answer, Order, Records, Sent
from tests import hostile
from tests.raw_amqp import RawClient, properties, table, text

#: The job for each queue.
QUEUES = {"mail": "work", "images": "work", "reports": "work", "feeds": "wait", "calls": "wait"}

#: The queue that is deleted and recreated.
REMADE_QUEUE = "orders"

#: One of this many jobs raises.
FAILING = 50

#: Publish timeout in seconds; 5 by default.
PUBLISH = 3.0

#: Number of different bodies of foreign messages, and the body of delayed ones. Each is sent repeatedly.
BODIES, LATER = 4, 9

#: The flags of the first properties, in the order of their values.
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _DELIVERY_MODE = 0x8000, 0x4000, 0x2000, 0x1000

_Job = tuple[int, float, bool]


class Source(Protocol):
    """A publishing program."""

    def step(self, chance: random.Random) -> float:
        """Publish something, and return the seconds to wait before the next step."""

    def close(self) -> None: ...


class _Enqueuing:
    """A program with its own client, whose jobs are all of one kind."""

    kind = "plain"

    def __init__(self, url: str, records: Records, queues: Sequence[str]) -> None:
        self._records = records
        self._queues = queues
        self._client = Client(Settings(url=url, publish_timeout=PUBLISH))

    def close(self) -> None:
        self._client.close()

    def _job(self, chance: random.Random) -> _Job:
        kind = chance.random()
        takes = (
            chance.uniform(1, 4) if kind < 0.02 else chance.uniform(0.2, 1) if kind < 0.1 else chance.uniform(0, 0.04)
        )
        return self._records.number(), round(takes, 4), chance.randrange(FAILING) == 0

    def _enqueue(self, queue: str, jobs: Sequence[_Job], **options: Any) -> None:
        """Enqueue one job, or several in one call, and record the result."""
        began, refused, ids = time.monotonic(), False, [""] * len(jobs)
        job, key = f"soaked.{QUEUES.get(queue, 'work')}", options.get("unique_key", "")
        try:
            if len(jobs) == 1:
                handle = self._client.enqueue(job, jobs[0], queue=queue, **options)
                if not handle.enqueued:
                    self._records.answered(Answer(key=key, holder=handle.id, at=time.monotonic()))
                    return
                ids = [handle.id]
            else:
                calls: list[tuple[str, _Job, dict[str, Any]]] = [(job, args, {}) for args in jobs]
                ids = [handle.id for handle in self._client.enqueue_many(calls, queue=queue, **options)]
        except PublishRefused:
            # If there are several, those before the refused one are stored.
            refused = len(jobs) == 1
        except BrokerError:
            pass
        ended = time.monotonic()
        self._records.ordered(
            [
                Order(
                    number=number,
                    id=id,
                    raises=raises,
                    began=began,
                    ended=ended,
                    kind=self.kind,
                    queue=queue,
                    refused=refused,
                    key=key,
                )
                for (number, _, raises), id in zip(jobs, ids, strict=True)
            ]
        )


class One(_Enqueuing):
    """Enqueues single jobs."""

    def step(self, chance: random.Random) -> float:
        self._enqueue(chance.choice(self._queues), [self._job(chance)])
        return chance.uniform(0.0, 0.06)


class Many(_Enqueuing):
    """Enqueues a dozen jobs at a time."""

    def step(self, chance: random.Random) -> float:
        queue = chance.choice(self._queues)
        self._enqueue(queue, [self._job(chance) for _ in range(chance.randint(2, 60))])
        return chance.uniform(0.2, 1.2)


class Tenants(_Enqueuing):
    """Enqueues jobs of a few tenants, in bursts."""

    kind = "tenant"

    def step(self, chance: random.Random) -> float:
        queue, tenant = chance.choice(self._queues), f"tenant {chance.randrange(4)}"
        self._enqueue(queue, [self._job(chance) for _ in range(chance.randint(1, 20))], tenant=tenant)
        return chance.uniform(0.2, 1.2)


class Delayed(_Enqueuing):
    """Enqueues jobs with short delays."""

    kind = "delayed"

    def step(self, chance: random.Random) -> float:
        self._enqueue(chance.choice(self._queues), [self._job(chance)], delay=round(chance.uniform(0.1, 4.0), 2))
        return chance.uniform(0.1, 0.6)


class Unique(_Enqueuing):
    """Enqueues jobs with one of a few unique keys, which are usually in use."""

    kind = "unique"

    def step(self, chance: random.Random) -> float:
        # A key belongs to one queue. The key of a job enqueued by name contains the name.
        number = chance.randrange(8)
        queue = self._queues[number % len(self._queues)]
        self._enqueue(queue, [self._job(chance)], unique="until_done", unique_key=f"key {number}")
        return chance.uniform(0.05, 0.3)


class _Raw:
    """A program that doesn't use Palermo, and reconnects when its connection is lost."""

    def __init__(self, url: str, exchange: str, records: Records, queues: Sequence[str]) -> None:
        self._url = url
        self._exchange = exchange
        self._queues = queues
        self._records = records
        self._client: RawClient | None = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _publish(self, queue: str, kind: str, number: int, properties: bytes, body: bytes) -> bool:
        """Publish and record one message. Returns whether the connection is still open."""
        began = time.monotonic()
        try:
            if self._client is None:
                self._client = RawClient(self._url)
        except OSError:
            return False
        try:
            outcome = self._client.publish(self._exchange, queue, properties, body)
        except OSError:
            outcome = ""
            self.close()
        self._records.published(
            [Sent(number=number, body=body, kind=kind, outcome=outcome, began=began, ended=time.monotonic())]
        )
        return bool(outcome)


class Foreign(_Raw):
    """Publishes messages without ids, many with the same body, and some delayed."""

    #: Maximum number of messages sent together with the same due time.
    storm = 20

    def step(self, chance: random.Random) -> float:
        queue = chance.choice(self._queues)
        number, later = 1 + chance.randrange(BODIES), chance.random() < 0.15
        if later:
            number = LATER
        takes = 0.0 if number % 2 else 0.02
        due = time.time() + chance.uniform(0, 3)
        headers = {"job-class": text(b"mixed.foreign")}
        if later:
            headers["perform_job_at"] = b"d" + struct.pack(">d", due)
        raw = properties(headers=table(**headers), delivery_mode=b"\2")
        for _ in range(chance.randint(1, self.storm if later else 5)):
            if not self._publish(queue, "foreign", number, raw, f"[{number}, {takes}]".encode()):
                break
        return chance.uniform(0.1, 0.8)


class Hostile(_Raw):
    """Publishes hostile messages."""

    def step(self, chance: random.Random) -> float:
        number = self._records.number()
        kind = chance.choice(sorted(hostile.MESSAGES))
        body = chance.choice((b"[%d", b"\xff\xfe%d")) if chance.random() < 0.15 else b"[%d]"
        self._publish(chance.choice(self._queues), kind, number, persistent(hostile.MESSAGES[kind]), body % number)
        return chance.uniform(0.1, 0.8)


def persistent(properties: bytes) -> bytes:
    """Return these properties with delivery mode 2, because a restarting broker drops all other messages."""
    (flags,) = struct.unpack(">H", properties[:2])
    if flags & _DELIVERY_MODE:
        return properties
    at = 2
    for flag in (_CONTENT_TYPE, _CONTENT_ENCODING):
        at += 1 + properties[at] if flags & flag else 0
    if flags & _HEADERS:
        at += 4 + int(struct.unpack(">I", properties[at : at + 4])[0])
    return struct.pack(">H", flags | _DELIVERY_MODE) + properties[2:at] + b"\2" + properties[at:]
