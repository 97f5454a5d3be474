"""Two workers and a program that enqueues, behind a proxy, on a RabbitMQ that a test may harm in any way."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pika

from palermo.client.client import Client
from palermo.core.topology import amqp_queue
from palermo.errors import BrokerError, BrokerRefused
from palermo.settings.settings import Settings
from tests.harness.processes import WorkerProcess
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.rabbitmq_node import Node, add_user, add_vhost, close_connections, set_permissions, url_of
from tests.tcp_proxy import TcpProxy

USER, PASSWORD, VHOST = "outpost", "secret", "outpost"

#: The queue of the worker that is pushed its jobs, and those of the one that asks for them.
PUSHED, POLLED = "jobs", ("mail", "images")

#: Seconds between a worker's attempts to connect, at most; 30 in truth.
MAX_PAUSE = 2.0

#: Seconds after a fault has ended in which a job enqueued then must have run, on a busy machine. A line that is silent
#: is noticed within twice the heartbeat timeout, here 2, and 5 seconds more: 14 seconds.
RECOVERY = 40.0

#: Seconds that enqueuing may take, as in truth.
PUBLISH = 5.0


class Outpost:
    """All there is to a site, with one worker of either kind; both go through every fault of a module."""

    def __init__(self, path: Path, node: Node, *, heartbeat: int = 2) -> None:
        self.node = node
        self._heartbeat = heartbeat
        self.proxy = TcpProxy(node.host, node.port)
        self._path = path
        self._numbers = 0

    def __enter__(self) -> Self:
        self.proxy.__enter__()
        add_user(self.node, USER, PASSWORD)
        self.make_vhost()
        url = f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.proxy.port}/{VHOST}?heartbeat={self._heartbeat}"
        self.rig = Rig(self._path, url, "palermo", module="shop")
        self.client = Client(Settings(url=url, publish_timeout=PUBLISH))
        times = {"palermo.worker.parent.broker_session.MAX_PAUSE": MAX_PAUSE}
        served = {"push": PUSHED, "poll": ",".join(POLLED)}
        self._workers = {name: self.rig.worker("-q", one, "-c", "2", times=times) for name, one in served.items()}
        self._read = dict.fromkeys(self._workers, 0)
        self.all_is_well()
        return self

    def __exit__(self, *raised: object) -> None:
        self.client.close()
        self.rig.__exit__()
        self.proxy.__exit__()

    @property
    def workers(self) -> list[WorkerProcess]:
        return list(self._workers.values())

    def all_is_well(self, *, within: float = RECOVERY) -> None:
        """The program enqueues, each worker runs it, and both are in the list of workers: now, or soon."""
        texts = [f"{queue} {self.number()}" for queue in (PUSHED, *POLLED)]
        for text in texts:
            self.enqueue_at_last("note", text, within=within)
        eventually(lambda: set(texts) <= set(self.rig.lines()), within=within)
        assert all(worker.alive for worker in self.workers)
        pids = {worker.pid for worker in self.workers}
        eventually(lambda: {row["pid"] for row in self.rig.workers() if row["state"] == "idle"} == pids, within=within)

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def enqueue(self, job: str, text: str, *more: Any) -> str:
        """A job for the queue that its text begins with."""
        return self.client.enqueue(f"shop.{job}", (text, *more), {}, queue=text.split()[0]).id

    def enqueue_at_last(self, job: str, text: str, *, within: float) -> str:
        """The same by a program that tries again when it is told to."""

        def enqueue() -> str:
            try:
                return self.enqueue(job, text)
            except BrokerError:
                return ""

        return eventually(enqueue, within=within)

    def is_refused(self, text: str) -> bool:
        """Whether enqueuing is refused with this text, and not for the time that it took on a busy machine."""
        try:
            self.enqueue("note", "jobs refused")
        except BrokerRefused as error:
            return text in str(error)
        except BrokerError:
            return False
        raise RuntimeError("it was not refused.")

    def hold(self) -> list[str]:
        """Have each worker run a job that lasts until `release`; what they wrote first."""
        self._gate = f"gate-{self.number()}"
        held = [f"{queue} {self._gate}" for queue in (PUSHED, POLLED[0])]
        for text in held:
            self.enqueue("hold", text, self._gate)
        eventually(lambda: {f"{text} begins" for text in held} <= set(self.rig.lines()))
        return held

    def release(self) -> None:
        self.rig.open_gate(self._gate)

    def ended(self, held: list[str]) -> bool:
        return {f"{text} ends" for text in held} <= set(self.rig.lines())

    def seen(self) -> None:
        """Forget what the logs have said so far."""
        self._read = {name: len(worker.log) for name, worker in self._workers.items()}

    @property
    def logs(self) -> dict[str, str]:
        """What the workers have said since."""
        return {name: worker.log[self._read[name] :] for name, worker in self._workers.items()}

    def both_say(self, text: str, *, within: float = RECOVERY) -> None:
        eventually(lambda: all(text in log for log in self.logs.values()), within=within)

    # What can be done to RabbitMQ.

    def make_vhost(self) -> None:
        add_vhost(self.node, VHOST)
        self.permit(".*")

    def permit(self, pattern: str) -> None:
        set_permissions(self.node, USER, pattern, pattern, pattern, vhost=VHOST)

    def close_connections(self) -> None:
        close_connections(self.node, USER)

    @contextmanager
    def channel(self) -> Iterator[Any]:
        """Another program's, past the proxy."""
        url = url_of(self.node, user=USER, password=PASSWORD, vhost=VHOST)
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            yield connection.channel()

    def delete_queues(self, *, arguments: dict[str, Any] | None = None) -> None:
        """All that are served; with arguments they are made again by another program."""
        with self.channel() as channel:
            for queue in (amqp_queue("palermo", name) for name in (PUSHED, *POLLED)):
                if arguments is None:
                    channel.queue_delete(queue)
                else:
                    # Without waiting in between: a worker makes its queue again within a millisecond.
                    channel._impl.queue_delete(queue)
                    channel._impl.queue_declare(queue, durable=True, arguments=arguments)
                    channel.queue_declare(queue, passive=True)
