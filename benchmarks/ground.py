"""The brokers and workers that a benchmark measures. Everything ends with it, and nothing is left on a broker."""

import argparse
import os
import secrets
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
from pika.exceptions import ChannelClosedByBroker

import palermo
from benchmarks.jobs import ORDER, QUEUE, noop
from benchmarks.processes import cpu_seconds, family
from palermo.client.decorator import FunctionJob
from palermo.core.topology import FAILED_QUEUE, amqp_queue
from tests import redis_node
from tests.rabbitmq_node import LocalNode, find_server, url_of
from tests.rabbitmq_tidy import delete_all

ROOT = Path(__file__).parent.parent

#: The command of a worker, to which options are added.
WORKER = [sys.executable, "-m", "palermo", "worker", "benchmarks.jobs", "--log-level", "error"]

#: The brokers that `connected` can start.
BROKERS = ("rabbitmq", "redis", "sqlite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The message that one enqueue sends to the broker. The bare side sends exactly the same."""

    exchange: str
    routing_key: str
    body: bytes
    properties: pika.BasicProperties


class Ground:
    """One exchange on RabbitMQ, and a connection that counts and empties its queues."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.exchange = f"bench-{secrets.token_hex(4)}"
        # No heartbeats, because nothing serves this connection while a round runs.
        parameters = pika.URLParameters(url)
        parameters.heartbeat = 0
        self._connection = pika.BlockingConnection(parameters)
        self._channel = self._connection.channel()
        #: The private node, or None on a broker from the command line.
        self.node: LocalNode | None = None
        #: The version of RabbitMQ.
        self.version: str = self._connection._impl.server_properties["version"]

    def connect(self) -> None:
        """Let this process enqueue here."""
        palermo.connect(self.url, exchange=self.exchange)

    def wire(self, job: FunctionJob[..., Any, Any] = noop) -> Wire:
        """Enqueue one job into the benchmarks' queue, and take it back."""
        self.connect()
        job.enqueue(ORDER)
        _, properties, body = self._channel.basic_get(self.amqp_name(QUEUE), auto_ack=True)
        assert properties is not None
        assert body is not None
        return Wire(exchange=self.exchange, routing_key=QUEUE, body=body, properties=properties)

    def make(self, queue: str) -> None:
        """Declare a queue as Palermo does, and leave it empty."""
        noop.options(queue=queue).enqueue(ORDER)
        self.purge(queue)

    def amqp_name(self, queue: str) -> str:
        """The queue's name on RabbitMQ."""
        return amqp_queue(self.exchange, queue)

    def waiting(self, queue: str = QUEUE) -> int:
        """The number of jobs in the queue."""
        declared: Any = self._channel.queue_declare(self.amqp_name(queue), passive=True)
        return int(declared.method.message_count)

    def failed(self) -> int:
        """The number of failed jobs."""
        try:
            return self.waiting(FAILED_QUEUE)
        except ChannelClosedByBroker:  # the failed queue is declared when the first job fails
            self._channel = self._connection.channel()
            return 0

    def purge(self, queue: str = QUEUE) -> int:
        """Empty the queue; returns the number of jobs that were in it."""
        return int(self._channel.queue_purge(self.amqp_name(queue)).method.message_count)

    def broker_seconds(self) -> float:
        """The CPU seconds that the private node has used; zero on a broker from the command line."""
        return 0.0 if self.node is None else cpu_seconds(family(self.node.pid))

    def environment(self) -> dict[str, str]:
        """The environment of a worker that serves this exchange."""
        return environment(self.url) | {"PALERMO_EXCHANGE": self.exchange}

    def close(self) -> None:
        self._connection.close()
        palermo.connect(self.url, exchange=self.exchange).close()
        delete_all(self.url, self.exchange)


@contextmanager
def ground(url: str | None) -> Iterator[Ground]:
    """A broker to measure on: the given one, or a private node that ends with the benchmark."""
    if url is None:
        server = find_server()
        if server is None:
            raise SystemExit("no rabbitmq-server is installed here; install one, or name a broker with --url.")
        with LocalNode(server) as node, ground(url_of(node)) as found:
            found.node = node
            yield found
        return
    found = Ground(url)
    try:
        yield found
    finally:
        found.close()


@contextmanager
def leader(place: Ground) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker without jobs that leads: it decides about keys, limits, tenants and times."""
    process = subprocess.Popen([*WORKER, "-q", "keeper"], cwd=ROOT, env=place.environment())
    try:
        inspector = palermo.inspector()
        while not any("main" in (one["duties"] or ()) for one in inspector.workers.list()):
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def connected(broker: str, *config: str, url: str | None = None) -> Iterator[tuple[str, dict[str, str]]]:
    """A broker to which this process enqueues: its version, and the environment of a worker.

    It is private, unless `url` names a RabbitMQ. `config` are options of redis-server.
    """
    if broker == "rabbitmq":
        with ground(url) as place:
            place.connect()
            yield f"RabbitMQ {place.version}", place.environment()
        return
    with ExitStack() as stack:
        if broker == "redis":
            node = stack.enter_context(redis_node.running(*config))
            name, at = node.version(), node.url
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            name, at = f"SQLite {sqlite3.sqlite_version}", f"sqlite:///{folder}/jobs.db"
        client = palermo.connect(at)
        yield name, environment(at)
        client.close()


def environment(url: str) -> dict[str, str]:
    """The environment of a process that uses this broker, without the settings of the person at the terminal."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PALERMO_")}
    return own | {"PALERMO_URL": url}


def add_url(parser: argparse.ArgumentParser) -> None:
    """Add the option that selects a broker."""
    parser.add_argument("--url", help="the RabbitMQ to use; without it, a private one is started")
