"""The stores in which jobs wait: one RabbitMQ for all, a redis if there is one, a file for each system that takes
files.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
from pika.exceptions import ChannelClosedByBroker

from benchmarks.peers.systems.palermo import EXCHANGE
from benchmarks.peers.systems.system import Store
from tests.rabbitmq_node import LocalNode, find_server, free_port, url_of
from tests.rabbitmq_tidy import delete_all

#: Seconds that redis may take to answer.
_WITHIN = 10.0


class Stores:
    """The addresses of what runs, and a connection to look at RabbitMQ with."""

    def __init__(self, amqp: str, redis: str, folder: Path) -> None:
        self._amqp = amqp
        #: Empty if there is none.
        self.redis = redis
        self._folder = folder
        parameters = pika.URLParameters(amqp)
        # Nobody serves this connection while a round runs.
        parameters.heartbeat = 0
        self._connection = pika.BlockingConnection(parameters)
        self._channel = self._connection.channel()
        #: RabbitMQ's own.
        self.version: str = self._connection._impl.server_properties["version"]

    def url(self, store: Store, name: str) -> str:
        """The address of that store, for the contender of this name."""
        match store:
            case "rabbitmq":
                return self._amqp
            case "redis":
                return self.redis
            case "sqlite":
                return str(self._folder / f"{name}.db")

    def waiting(self, queues: Iterable[str]) -> int:
        """The number of waiting messages in these queues of RabbitMQ, without those that a consumer holds."""
        return sum(
            self._count(lambda queue: self._channel.queue_declare(queue, passive=True), queue) for queue in queues
        )

    def purge(self, queues: Iterable[str]) -> int:
        """Empty these; how many messages they had."""
        return sum(self._count(lambda queue: self._channel.queue_purge(queue), queue) for queue in queues)

    def delete(self, queues: Iterable[str]) -> None:
        """Delete these, if they are there."""
        for queue in queues:
            self._channel.queue_delete(queue)

    def _count(self, ask: Callable[[str], Any], queue: str) -> int:
        try:
            return int(ask(queue).method.message_count)
        except ChannelClosedByBroker:  # a system may make its queue when the first job comes
            self._channel = self._connection.channel()
            return 0

    def close(self) -> None:
        self._connection.close()
        delete_all(self._amqp, EXCHANGE)


@contextmanager
def stores(url: str | None, folder: Path, *, redis: bool) -> Iterator[Stores]:
    """The RabbitMQ at `url`, or a private one; a private redis, if that is wanted. Ended and emptied afterwards."""
    if url is None:
        server = find_server()
        if server is None:
            raise SystemExit("no rabbitmq-server is installed here to start a private node with; name one by --url.")
        with LocalNode(server) as node, stores(url_of(node), folder, redis=redis) as found:
            yield found
        return
    with _redis(folder, wanted=redis) as address:
        found = Stores(url, address, folder)
        try:
            yield found
        finally:
            found.close()


@contextmanager
def _redis(folder: Path, *, wanted: bool) -> Iterator[str]:
    """A redis that has each command on the disk before it answers; "" where redis is not installed."""
    server = shutil.which("redis-server") if wanted else None
    if server is None:
        yield ""
        return
    port = free_port()
    safe = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), *safe]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL) as process:
        try:
            _await_port(process, port)
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.kill()


def _await_port(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + _WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise SystemExit("redis-server is installed, and does not start.")
