"""The broker that a benchmark runs on, and what it leaves there: nothing."""

import argparse
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pika
from pika.exceptions import ChannelClosedByBroker

import palermo
from benchmarks.jobs import ORDER, QUEUE, noop
from benchmarks.processes import cpu_seconds, family
from palermo.client.decorator import FunctionJob
from palermo.core.topology import FAILED_QUEUE, amqp_queue
from tests.rabbitmq_node import LocalNode, find_server, url_of
from tests.rabbitmq_tidy import delete_all


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """What one enqueue puts on the wire, taken from there: the bare side sends exactly this."""

    exchange: str
    routing_key: str
    body: bytes
    properties: pika.BasicProperties


class Ground:
    """One exchange, its queues, and a connection of its own to look at them and to empty them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.exchange = f"bench-{secrets.token_hex(4)}"
        # A connection without heartbeats, since nobody serves it while a round runs.
        parameters = pika.URLParameters(url)
        parameters.heartbeat = 0
        self._connection = pika.BlockingConnection(parameters)
        self._channel = self._connection.channel()
        #: The private node that this is on; None on a broker that the command line names.
        self.node: LocalNode | None = None
        #: RabbitMQ's own version.
        self.version: str = self._connection._impl.server_properties["version"]

    def connect(self) -> None:
        """Let this process enqueue here."""
        palermo.connect(self.url, exchange=self.exchange)

    def wire(self, job: FunctionJob[..., Any, Any] = noop) -> Wire:
        """Enqueue one job of the benchmarks' queue and take it back."""
        self.connect()
        job.enqueue(ORDER)
        _, properties, body = self._channel.basic_get(self.amqp_name(QUEUE), auto_ack=True)
        assert properties is not None
        assert body is not None
        return Wire(exchange=self.exchange, routing_key=QUEUE, body=body, properties=properties)

    def make(self, queue: str) -> None:
        """Have Palermo declare another queue as it declares all, and leave it empty."""
        noop.options(queue=queue).enqueue(ORDER)
        self.purge(queue)

    def amqp_name(self, queue: str) -> str:
        """What RabbitMQ calls the queue."""
        return amqp_queue(self.exchange, queue)

    def waiting(self, queue: str = QUEUE) -> int:
        """How many jobs wait in the queue."""
        return self.lying(self.amqp_name(queue))

    def lying(self, name: str) -> int:
        """How many messages wait in the AMQP queue of this name."""
        declared: Any = self._channel.queue_declare(name, passive=True)
        return int(declared.method.message_count)

    def failed(self) -> int:
        """How many jobs have failed."""
        try:
            return self.waiting(FAILED_QUEUE)
        except ChannelClosedByBroker:  # a queue that nobody needed is not there
            self._channel = self._connection.channel()
            return 0

    def purge(self, queue: str = QUEUE) -> int:
        """Empty the queue; how many jobs were in it."""
        return int(self._channel.queue_purge(self.amqp_name(queue)).method.message_count)

    def broker_seconds(self) -> float:
        """The CPU time that the private node has used so far; zero on a broker that the command line names."""
        return 0.0 if self.node is None else cpu_seconds(family(self.node.pid))

    def environment(self) -> dict[str, str]:
        """For a worker that is to serve here: only this, and no settings of the person who runs this."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("PALERMO_")}
        return own | {"PALERMO_URL": self.url, "PALERMO_EXCHANGE": self.exchange}

    def close(self) -> None:
        self._connection.close()
        palermo.connect(self.url, exchange=self.exchange).close()
        delete_all(self.url, self.exchange)


@contextmanager
def ground(url: str | None) -> Iterator[Ground]:
    """A broker to measure on: the one given, else a private node that ends with the benchmark."""
    if url is None:
        server = find_server()
        if server is None:
            raise SystemExit(
                "no rabbitmq-server is installed here to start a private node with; name a broker by --url."
            )
        with LocalNode(server) as node, ground(url_of(node)) as found:
            found.node = node
            yield found
        return
    found = Ground(url)
    try:
        yield found
    finally:
        found.close()


def arguments(description: str, *, jobs: int) -> argparse.Namespace:
    """The command line that all benchmarks share: url, rounds, n."""
    return parser_of(description, jobs=jobs).parse_args()


def parser_of(description: str, *, jobs: int) -> argparse.ArgumentParser:
    """The same for a benchmark that has more to say."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--url", help="a broker to measure on; without it a private node is started")
    parser.add_argument("--rounds", type=int, default=5, help="of both sides; %(default)s unless given")
    parser.add_argument(
        "-n", type=int, default=jobs, metavar="JOBS", help="per side and round; %(default)s unless given"
    )
    return parser
