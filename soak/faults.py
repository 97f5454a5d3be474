"""The faults of a soak, dealt one after the other from a shuffled deck."""

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
from soak.records import Harm
from soak.traffic import QUEUES, REMADE_QUEUE
from tests.chaos.junk import RECORDS
from tests.harness.processes import children
from tests.helpers import eventually
from tests.rabbitmq_node import url_of
from tests.raw_amqp import RawClient, properties, table

#: Seconds between two faults.
PAUSE = (0.1, 1.2)

#: Seconds for which a line is silent. With heartbeats of 2 it is given up after 4 to 9.
SILENCE = (0.5, 9.0)

#: Seconds for which an alarm lasts, and enqueuing waits.
ALARM = (0.5, 3.0)

#: Seconds for which queues refuse what comes.
REFUSAL = (0.5, 3.0)

#: The queues that do so together, by the name of their policy.
FULL = {"jobs": (*QUEUES, REMADE_QUEUE), "failed": ("failed",)}

#: Messages that they take at all other times. RabbitMQ drops the oldest where a queue has more than it may when the
#: policy comes, since it reads the length before it reads that it is to refuse: so the policy is there from the first.
ROOM = 1_000_000

#: Seconds for which another program has a queue for itself.
ALONE = (0.5, 8.0)

#: Parts of the names of Palermo's own queues that hold jobs: what another program puts there is taken for one.
OF_JOBS = ("~later.", "~tenant.", "~migrating.", "~events")

#: Seconds for which a queue is gone before another program makes it again.
GONE = (0.0, 0.02)

#: Seconds from the making of a quorum queue, or a change of a policy, to the next kill of the broker. RabbitMQ that is
#: killed within half a second has the queue afterwards, but no leader for it ever: who asks it waits for a minute and
#: loses the connection (3.10.8, six queues a time: the last one at kills 0 and 0.3 s after, none from 1 s on).
WRITTEN = 3.0


def _consumer_alone(url: str, queue: str) -> RawClient | None:
    """A connection that has the queue for itself, and holds one job; None while the queue has another consumer.

    Not by pika, which ends a connection at a job with a timestamp that Python cannot represent.
    """
    client = RawClient(url)
    try:
        client.consume_alone(queue)
    except ConnectionError:
        client.close()
        return None
    return client


class Faults:
    """The deck, which begins with each kind of fault once."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._chance = random.Random(f"{arena.seed} faults")
        # Those that take long are rare.
        self._more = [self._parent, self._parent, self._child, self._child, self._child, self._cut, self._stall]
        self._deck = self._kinds()
        self._chance.shuffle(self._deck)
        self._first = True
        #: When the broker has surely written down the queue that was made again.
        self._written = 0.0
        #: The silent lines: since when, until when, and whose.
        self._silent: list[tuple[float, float, frozenset[str]]] = []
        if REFUSALS in arena.parts:
            self._limit(FULL, ROOM)

    def deal(self, seconds: float) -> None:
        """Deal faults for this number of seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._next()

    def end(self, *, each_kind: bool) -> None:
        """Let all lines speak again, after each kind of fault has come about if that is wanted."""
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
        """One of each."""
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

    # Processes.

    def _parent(self) -> None:
        name = self._chance.choice(self._arena.mortal)
        worker, at = self._arena.workers[name], time.monotonic()
        worker.kill9()
        self._done("parent", at, parent=worker.pid)
        self._arena.start(name)

    def _child(self) -> None:
        """A slot, or the process that slots share."""
        parent = self._arena.workers[self._chance.choice(sorted(self._arena.workers))].pid
        self._kill("child", parent, [child for template in children(parent) for child in children(template)])

    def _template(self) -> None:
        # Then the parent begins anew, so none of those that are looked at for how they grow.
        parent = self._arena.workers[self._chance.choice(self._arena.mortal)].pid
        self._kill("template", parent, children(parent))

    def _kill(self, kind: str, parent: int, victims: list[int]) -> None:
        if victims:
            victim, at = self._chance.choice(victims), time.monotonic()
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                self._done(kind, at, parent=parent, process=victim)

    # Lines.

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
        """End the silences that are due; of lines that are silent twice, both at the end of the first."""
        for since, until, names in list(self._silent):
            if until <= now:
                for name in names:
                    self._arena.proxies[name].resume()
                self._silent.remove((since, until, names))
                self._done("stall", since, links=names)

    def _some(self) -> frozenset[str]:
        """One line, some, or all."""
        names = list(self._arena.proxies)
        return frozenset(self._chance.sample(names, self._chance.choice((1, 1, 1, 2, 3, len(names)))))

    # The broker.

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
        self._raise("set_vm_memory_high_watermark", "0.00001", "0.4")

    def _disk_alarm(self) -> None:
        self._raise("set_disk_free_limit", "900000000000000", "50000000")

    def _raise(self, limit: str, above: str, below: str) -> None:
        at = time.monotonic()
        self._arena.node.ctl(limit, above)
        self._arena.pause(self._chance.uniform(*ALARM))
        self._arena.node.ctl(limit, below)
        self._done("alarm", at)

    # Queues.

    def _refusal(self) -> None:
        """Have job queues, `failed` or both refuse what comes while there are some messages in them."""
        full, at = self._chance.choice([["jobs"], ["failed"], ["jobs", "failed"]]), time.monotonic()
        self._limit(full, self._chance.choice((1, 3, 10)))
        self._arena.pause(self._chance.uniform(*REFUSAL))
        self._limit(full, ROOM)
        self._done("refusal", at, queues=[queue for name in full for queue in FULL[name]])

    def _limit(self, names: Iterable[str], most: int) -> None:
        """Set all these policies by one command, as `rabbitmqctl set_policy` does each: it takes a second or more."""
        limits = f'{{\\"max-length\\":{most},\\"overflow\\":\\"reject-publish\\"}}'
        calls = [
            f'rabbit_policy:parse_set(<<"/">>, <<"{name}">>, <<"^({"|".join(FULL[name])})$">>, <<"{limits}">>,'
            ' <<"0">>, <<"queues">>, <<"soak">>)'
            for name in names
        ]
        said = self._arena.node.ctl("eval", f"[{', '.join(calls)}].")
        assert "error" not in said, said
        # A node up to 4.2 that is killed before has the policy of before: it then drops what is more than the limit.
        self._written = time.monotonic() + WRITTEN

    def _remade(self) -> None:
        """Delete a quorum queue that is in use, and make it again, if nobody was quicker."""
        gone, at = self._chance.choice((0.0, self._chance.uniform(*GONE))), time.monotonic()
        jobs = self._arena.delete_queue()
        if gone:
            self._arena.pause(gone)
        with suppress(AMQPError):
            self._arena.make_queue()
        self._written = time.monotonic() + WRITTEN
        self._done("queue remade", at, queues=(REMADE_QUEUE,), jobs=jobs)

    def _exclusive(self) -> None:
        """Consume from a queue exclusively for a while, as another program does that knows nothing of workers."""
        queue, at = self._chance.choice(sorted(QUEUES)), time.monotonic()
        # RabbitMQ gives a queue to one consumer only while it has no other.
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
        """Do this by the inspector, whose session may be one from before the last fault."""

        def done() -> bool:
            try:
                act(self._arena.rig.inspector)
            except BrokerError:
                return False
            return True

        eventually(done)

    def _malformed(self) -> None:
        """Publish what no reader can read to all of Palermo's own streams and queues but those that hold jobs."""
        at = time.monotonic()
        names = self._arena.node.ctl("list_queues", "--no-table-headers", "name").split("\n")
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
        harm = Harm(
            kind=kind,
            at=at,
            until=time.monotonic(),
            links=frozenset(links),
            parent=parent,
            process=process,
            queues=frozenset(queues),
            jobs=jobs,
        )
        self._arena.records.harms.append(harm)
