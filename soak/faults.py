"""The faults of a soak, drawn one after another from a shuffled deck."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from pika.exceptions import AMQPError

from palermo.errors import BrokerError
from palermo.inspector.inspector import Inspector
from soak.arena import Arena
from soak.parts import EXCLUSIVE, MALFORMED, REFUSALS, REMADE
from soak.records import Fault
from soak.traffic import QUEUES, REMADE_QUEUE
from tests.chaos.junk import RECORDS
from tests.harness.processes import children
from tests.helpers import eventually
from tests.rabbitmq_node import clear_alarm, queues_of, raise_alarm, set_policy, url_of
from tests.raw_amqp import RawClient, properties, table

#: Seconds between faults.
PAUSE = (0.1, 1.2)

#: Seconds for which a connection is silent. With heartbeats of 2 seconds it is given up after 4 to 9.
SILENCE = (0.5, 9.0)

#: Duration of an alarm in seconds, during which enqueuing waits.
ALARM = (0.5, 3.0)

#: Seconds for which queues refuse messages.
REFUSAL = (0.5, 3.0)

#: The queues that refuse messages together, by the name of their policy.
FULL = {"jobs": (*QUEUES, REMADE_QUEUE), "failed": ("failed",)}

#: Limit of these queues at all other times. The policy must always exist: RabbitMQ applies a new length limit before it
#: applies the overflow mode, so a queue above the limit would drop its oldest messages.
ROOM = 1_000_000

#: Seconds for which another program consumes a queue exclusively.
ALONE = (0.5, 8.0)

#: Parts of the names of Palermo's own queues that contain jobs, in which another program's messages count as jobs.
OF_JOBS = ("~later.", "~tenant.", "~migrating.", "~events")

#: Seconds until another program recreates a deleted queue.
GONE = (0.0, 0.02)

#: Seconds from creating a quorum queue or changing a policy until the broker may be killed. If RabbitMQ is killed
#: within half a second, the queue exists afterwards but never gets a leader, so clients wait for a minute and lose
#: their connection (RabbitMQ 3.10.8, with six queues per attempt: happened when killed after 0 and 0.3 s, but not from
#: 1 s on).
WRITTEN = 3.0


def _consumer_alone(url: str, queue: str) -> RawClient | None:
    """Return a connection that consumes the queue exclusively and holds one job; None if there is another consumer.

    Doesn't use pika, which closes the connection on a timestamp that Python can't represent.
    """
    client = RawClient(url)
    try:
        client.consume_alone(queue)
    except ConnectionError:
        client.close()
        return None
    return client


class Faults:
    """The deck of faults, which starts with one of each kind."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._chance = random.Random(f"{arena.seed} faults")
        # Slow faults are rare.
        self._more = [self._parent, self._parent, self._child, self._child, self._child, self._cut, self._stall]
        self._deck = self._kinds()
        self._chance.shuffle(self._deck)
        self._first = True
        #: When the broker has certainly persisted the recreated queue or the changed policy.
        self._written = 0.0
        #: The silent connections, with start, end and names.
        self._silent: list[tuple[float, float, frozenset[str]]] = []
        if REFUSALS in arena.parts:
            self._limit(FULL, ROOM)

    def inject(self, seconds: float) -> None:
        """Cause faults for this number of seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._next()

    def end(self, *, each_kind: bool) -> None:
        """End all silences, with `each_kind` only after each kind of fault has been used."""
        while each_kind and self._first:
            self._next()
        self._resume(float("inf"))

    def _next(self) -> None:
        if not self._deck:
            self._deck = self._kinds() + self._more
            self._chance.shuffle(self._deck)
        self._deck.pop()()
        self._arena.pause(self._chance.uniform(*PAUSE))
        self._resume(time.monotonic())
        self._first = self._first and bool(self._deck)

    def _kinds(self) -> list[Callable[[], None]]:
        parts = {REFUSALS: self._refusal, REMADE: self._remade, EXCLUSIVE: self._exclusive, MALFORMED: self._malformed}
        return [
            *(fault for part, fault in parts.items() if part in self._arena.parts),
            self._parent,
            self._child,
            self._template,
            self._cut,
            self._stall,
            self._alarm,
            self._disk_alarm,
            self._broker_killed if self._chance.random() < 0.7 else self._broker_restarted,
        ]

    # Processes

    def _parent(self) -> None:
        name = self._chance.choice(self._arena.mortal)
        worker, at = self._arena.workers[name], time.monotonic()
        worker.kill9()
        self._done("parent", at, parent=worker.pid)
        self._arena.start(name)

    def _child(self) -> None:
        """Kill a slot or the process that slots share."""
        parent = self._arena.workers[self._chance.choice(sorted(self._arena.workers))].pid
        self._kill("child", parent, [child for template in children(parent) for child in children(template)])

    def _template(self) -> None:
        # The parent then restarts, so don't choose one whose growth is measured.
        parent = self._arena.workers[self._chance.choice(self._arena.mortal)].pid
        self._kill("template", parent, children(parent))

    def _kill(self, kind: str, parent: int, victims: list[int]) -> None:
        if victims:
            victim, at = self._chance.choice(victims), time.monotonic()
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                self._done(kind, at, parent=parent, process=victim)

    # Connections

    def _cut(self) -> None:
        names, reset, at = self._some(), self._chance.random() < 0.5, time.monotonic()
        for name in names:
            self._arena.proxies[name].hang_up(reset=reset)
        self._done("cut", at, links=names)

    def _stall(self) -> None:
        names, at = self._some(), time.monotonic()
        directions = self._chance.choice([("up",), ("down",), ("up", "down")])
        new_too = self._chance.random() < 0.5
        for name in names:
            self._arena.proxies[name].stall(*directions, new_too=new_too)
        self._silent.append((at, at + self._chance.uniform(*SILENCE), names))

    def _resume(self, now: float) -> None:
        """End the silences that are due. A connection with two silences speaks after the first."""
        for since, until, names in list(self._silent):
            if until <= now:
                for name in names:
                    self._arena.proxies[name].resume()
                self._silent.remove((since, until, names))
                self._done("stall", since, links=names)

    def _some(self) -> frozenset[str]:
        """Return one connection, several, or all."""
        names = list(self._arena.proxies)
        return frozenset(self._chance.sample(names, self._chance.choice((1, 1, 1, 2, 3, len(names)))))

    # The broker

    def _broker_killed(self) -> None:
        self._arena.pause(max(0.0, self._written - time.monotonic()))
        at = time.monotonic()
        self._arena.node.kill9()
        self._arena.pause(self._chance.uniform(0, 1))
        self._arena.node.start()
        self._done("broker killed", at, links=[*self._arena.proxies])

    def _broker_restarted(self) -> None:
        at = time.monotonic()
        self._arena.node.stop()
        self._arena.node.start()
        self._done("broker restarted", at, links=[*self._arena.proxies])

    def _alarm(self) -> None:
        self._raise("memory")

    def _disk_alarm(self) -> None:
        self._raise("disk")

    def _raise(self, resource: str) -> None:
        at = time.monotonic()
        raise_alarm(self._arena.node, resource)
        self._arena.pause(self._chance.uniform(*ALARM))
        clear_alarm(self._arena.node, resource)
        self._done("alarm", at)

    # Queues

    def _refusal(self) -> None:
        """Let job queues, `failed` or both refuse messages while they contain some."""
        full, at = self._chance.choice([["jobs"], ["failed"], ["jobs", "failed"]]), time.monotonic()
        self._limit(full, self._chance.choice((1, 3, 10)))
        self._arena.pause(self._chance.uniform(*REFUSAL))
        self._limit(full, ROOM)
        self._done("refusal", at, queues=[queue for name in full for queue in FULL[name]])

    def _limit(self, names: Iterable[str], most: int) -> None:
        for name in names:
            limits = {"max-length": most, "overflow": "reject-publish"}
            set_policy(self._arena.node, name, f"^({'|'.join(FULL[name])})$", limits)
        # A node up to 4.2 that is killed earlier still has the old policy, and drops messages above its limit.
        self._written = time.monotonic() + WRITTEN

    def _remade(self) -> None:
        """Delete a quorum queue in use and recreate it, unless another process already has."""
        gone, at = self._chance.choice((0.0, self._chance.uniform(*GONE))), time.monotonic()
        jobs = self._arena.delete_queue()
        if gone:
            self._arena.pause(gone)
        with suppress(AMQPError):
            self._arena.make_queue()
        self._written = time.monotonic() + WRITTEN
        self._done("queue remade", at, queues=(REMADE_QUEUE,), jobs=jobs)

    def _exclusive(self) -> None:
        """Consume a queue exclusively for a while, like a program that isn't aware of workers."""
        queue, at = self._chance.choice(sorted(QUEUES)), time.monotonic()
        # RabbitMQ allows exclusive consumption only while there is no other consumer.
        self._insist(lambda inspector: inspector.queues.pause(queue))
        try:
            alone = eventually(lambda: _consumer_alone(url_of(self._arena.node), queue))
            assert alone is not None
            with alone:
                self._insist(lambda inspector: inspector.queues.resume(queue))
                self._arena.pause(self._chance.uniform(*ALONE))
        finally:
            self._insist(lambda inspector: inspector.queues.resume(queue))
        self._done("exclusive consumer", at, queues=(queue,))

    def _insist(self, act: Callable[[Inspector], object]) -> None:
        """Repeat an action of the inspector until it succeeds, because its session may predate the last fault."""

        def done() -> bool:
            try:
                act(self._arena.rig.inspector)
            except BrokerError:
                return False
            return True

        eventually(done)

    def _malformed(self) -> None:
        """Publish malformed messages to all of Palermo's own streams and queues except those that contain jobs."""
        at = time.monotonic()
        names = queues_of(self._arena.node)
        own = [name for name in names if ".~" in name and not any(part in name for part in OF_JOBS)]
        with RawClient(url_of(self._arena.node)) as client:
            for name in own:
                for body in RECORDS:
                    client.publish("", name, properties(headers=table()), body)
        self._done("malformed records", at, queues=own)

    def _done(
        self,
        kind: str,
        at: float,
        *,
        links: Iterable[str] = (),
        parent: int = 0,
        process: int = 0,
        queues: Iterable[str] = (),
        jobs: int = 0,
    ) -> None:
        fault = Fault(
            kind=kind,
            at=at,
            until=time.monotonic(),
            links=frozenset(links),
            parent=parent,
            process=process,
            queues=frozenset(queues),
            jobs=jobs,
        )
        self._arena.records.faults.append(fault)
