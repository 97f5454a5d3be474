"""On Redis the thread that enqueues reads the answer itself; whatever goes wrong there, each job is stored once."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis.connection
import redis.exceptions

from palermo.brokers.redis.broker import RedisBroker
from palermo.brokers.redis.connection import Connection
from palermo.brokers.redis.store import _script
from palermo.client.client import Client
from palermo.errors import BrokerRefused
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests import redis_node
from tests.certificates import Authority
from tests.contract.test_redis_server import PERMISSIONS
from tests.contract.tools import PATIENT
from tests.helpers import eventually
from tests.rabbitmq_node import free_port
from tests.redis_node import RedisNode


@pytest.fixture
def node() -> Iterator[RedisNode]:
    with redis_node.running("--lua-time-limit", "20") as node:
        yield node


@pytest.fixture
def client(node: RedisNode) -> Iterator[Client]:
    """A client whose threads enqueue directly."""
    with Client(Settings(url=node.url, publish_timeout=PATIENT)) as client:
        ready(client)
        yield client


@pytest.fixture
def otherwise(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the methods by which jobs were sent over a session's own connection."""
    found: list[str] = []

    def note(name: str) -> None:
        method = getattr(Connection, name)

        def noted(self: Connection, *given: Any) -> Any:
            if _script("publish")[1] in given:
                found.append(name)
            return method(self, *given)

        monkeypatch.setattr(Connection, name, noted)

    note("begin")
    note("try_begin")
    return found


def before_the_answer(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have the next thread that has sent a job itself do this before it reads the answer."""
    kind = redis.connection.AbstractConnection
    read, waiting = kind.read_response, [act]

    def acted(self: Any, *given: Any, **named: Any) -> Any:
        if waiting:
            waiting.pop()()
        return read(self, *given, **named)

    monkeypatch.setattr(kind, "read_response", acted)


def session_of(client: Client) -> RedisBroker:
    session = client._io()._keeper.session
    assert isinstance(session, RedisBroker)
    return session


def ready(client: Client) -> None:
    """Enqueue jobs until the connection is there over which a thread reads answers itself."""

    def is_there() -> bool:
        client.enqueue("shop.note", [], {}, queue="warm")
        session = client._io()._keeper.session
        return isinstance(session, RedisBroker) and bool(session._store._direct._idle)

    eventually(is_there)


def enqueue(client: Client, number: int = 0) -> None:
    client.enqueue("shop.note", [number], {}, queue="jobs")


def stored(client: Client) -> int:
    return Inspector(client).queues.size("jobs")


@pytest.mark.parametrize("kind", ["unix", "tcp", "user", *([] if redis_node.WITHOUT_TLS else ["tls"])])
def test_a_thread_that_enqueues_reads_the_answer_itself(kind: str, tmp_path: Path, otherwise: list[str]) -> None:
    port = free_port()
    options: tuple[object, ...] = ("--port", port)
    if kind == "tls":
        authority = Authority(tmp_path, "authority")
        own = authority.sign("server", host="localhost")
        options = ("--tls-cert-file", own.file, "--tls-key-file", own.key, "--tls-ca-cert-file", authority.file)
        options = ("--tls-port", port, "--tls-auth-clients", "no", *options)
    with redis_node.running(*map(str, options)) as node:
        node.ask("ACL", "SETUSER", "shop", "on", ">right", *PERMISSIONS)
        url = {
            "unix": node.url,
            "tcp": f"redis://127.0.0.1:{port}/1",
            "user": f"redis+unix://shop:right@{node.url.partition('//')[2]}",
            "tls": f"rediss://localhost:{port}/1?ssl_ca_certs={tmp_path}/authority.pem",
        }[kind]
        with Client(Settings(url=url, publish_timeout=PATIENT)) as client:
            enqueues_directly(client, otherwise)
        if kind == "tls":
            Authority(tmp_path, "other")
            url = url.replace("authority.pem", "other.pem")
            with Client(Settings(url=url)) as client, pytest.raises(BrokerRefused, match="not trusted"):
                enqueue(client)


def enqueues_directly(client: Client, otherwise: list[str]) -> None:
    ready(client)
    enqueue(client)
    before = stored(client)
    otherwise.clear()

    for number in range(5):
        enqueue(client, number)

    assert otherwise == []
    assert stored(client) == before + 5


def opens(client: Client) -> bool:
    """Whether the server, perhaps chosen a moment ago, takes jobs."""
    return client.run(lambda broker: broker.queues()) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (("SCRIPT", "FLUSH"), ()),
        (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
        (("EVAL", "while true do end", 0), ("SCRIPT", "KILL")),
        (("CLIENT", "KILL", "TYPE", "normal"), ()),
        ((signal.SIGSTOP,), (signal.SIGCONT,)),
    ],
)
def test_a_job_that_redis_refuses_for_now_is_stored_once(
    node: RedisNode, client: Client, otherwise: list[str], begin: tuple[Any, ...], end: tuple[Any, ...]
) -> None:
    process = node._process
    assert process is not None
    with ThreadPoolExecutor() as threads:
        if begin[0] == "EVAL":
            threads.submit(node.ask, *begin)
            eventually(lambda: refuses(node))
        else:
            (process.send_signal if begin[0] == signal.SIGSTOP else node.ask)(*begin)
        otherwise.clear()

        enqueued = threads.submit(enqueue, client)

        if end:
            eventually(lambda: otherwise)
            (process.send_signal if end[0] == signal.SIGCONT else node.ask)(*end)
        enqueued.result()
    assert stored(client) == 1


def refuses(node: RedisNode) -> bool:
    try:
        return not node.ask("PING")
    except redis.exceptions.ResponseError:
        return True


@pytest.mark.parametrize("answered", [True, False])
def test_a_job_whose_server_is_killed_before_the_answer_is_stored_once(
    node: RedisNode, client: Client, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    def kill() -> None:
        if answered:
            eventually(lambda: node.ask("HGET", "palermo:{palermo}:queues", "jobs"))
        node.kill9()
        node.start()
        raise redis.exceptions.ConnectionError

    before_the_answer(monkeypatch, kill)

    enqueue(client)

    assert stored(client) == 1
    ready(client)


def test_a_lost_session_leaves_one_job(client: Client, monkeypatch: pytest.MonkeyPatch, otherwise: list[str]) -> None:
    io, before = client._io(), session_of(client)

    def give_up() -> None:
        io._loop.call_soon_threadsafe(lambda: io._keeper.give_up(before))
        eventually(lambda: before._store.closed)

    before_the_answer(monkeypatch, give_up)
    otherwise.clear()

    enqueue(client)

    assert otherwise == []
    assert stored(client) == 1
    assert not before._store._direct._idle


def test_ctrl_c_leaves_no_answer_for_the_next_job(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    before_the_answer(monkeypatch, lambda: signal.raise_signal(signal.SIGINT))

    with pytest.raises(KeyboardInterrupt):
        enqueue(client)

    enqueue(client, 1)
    ready(client)
    enqueue(client, 2)
    assert stored(client) == 3


def test_a_signal_handler_may_enqueue(client: Client, monkeypatch: pytest.MonkeyPatch, otherwise: list[str]) -> None:
    before_the_answer(monkeypatch, lambda: enqueue(client, 1))
    otherwise.clear()

    enqueue(client)

    assert otherwise == ["try_begin"]
    assert stored(client) == 2


def test_threads_that_enqueue_at_once_share_one_such_connection(node: RedisNode, client: Client) -> None:
    def some() -> None:
        for number in range(50):
            enqueue(client, number)

    with ThreadPoolExecutor(4) as threads:
        for one in [threads.submit(some) for _ in range(4)]:
            one.result()

    assert stored(client) == 200
    assert connections(node) == 2


def test_a_lost_session_is_noticed_although_the_other_connection_lives(node: RedisNode, client: Client) -> None:
    before = session_of(client)
    own = client.run(lambda _: before._store.call("CLIENT", "ID"))

    node.ask("CLIENT", "KILL", "ID", own)

    eventually(lambda: before._store.ended)
    enqueue(client)
    assert session_of(client) is not before
    assert stored(client) == 1
    eventually(lambda: connections(node) == 1)


def connections(node: RedisNode) -> int:
    """How many a client of Palermo has."""
    return sum(b"name=palermo" in line for line in node.ask("CLIENT", "LIST").splitlines())


def test_the_second_connection_ends_with_the_client(node: RedisNode, client: Client, otherwise: list[str]) -> None:
    client.run(lambda broker: broker.queues())
    keeper = client._io()._keeper
    before = keeper.last_answer_at
    otherwise.clear()

    enqueue(client)
    assert (keeper.last_answer_at, otherwise) == (before, [])

    client.enqueue("shop.note", ["x" * 100_000], {}, queue="jobs")
    assert otherwise

    assert connections(node) == 2
    client.close()
    eventually(lambda: connections(node) == 0)


def test_a_server_that_takes_no_second_connection_serves_the_first(otherwise: list[str]) -> None:
    with (
        redis_node.running("--maxclients", "1") as node,
        Client(Settings(url=node.url, publish_timeout=PATIENT)) as client,
    ):
        eventually(lambda: opens(client))
        otherwise.clear()

        for number in range(5):
            enqueue(client, number)

        assert otherwise == ["try_begin"] * 5
        assert stored(client) == 5


def has_two_copies(primary: RedisNode) -> bool:
    """Whether two replicas have all that the primary has."""
    told = primary.ask("INFO", "replication").decode()
    [offset] = re.findall(r"master_repl_offset:(\d+)", told)
    return re.findall(r"state=(\w+),offset=(\d+)", told) == [("online", offset)] * 2


@pytest.mark.slow
def test_a_failover_to_a_replica_loses_and_doubles_no_job(otherwise: list[str]) -> None:
    with redis_node.watched() as watched:
        url = f"{watched.url}?wait_replicas=0"
        with Client(Settings(url=url, publish_timeout=PATIENT)) as client:
            ready(client)
            enqueue(client, 1)
            before = session_of(client).describe()
            eventually(lambda: has_two_copies(watched.primary))

            watched.primary.kill9()
            enqueue(client, 2)

            assert session_of(client).describe() != before
            assert stored(client) == 2
            enqueues_directly(client, otherwise)


def test_a_slot_that_moves_to_another_node_loses_and_doubles_no_job(otherwise: list[str]) -> None:
    with redis_node.cluster() as cluster, Client(Settings(url=cluster.url, publish_timeout=PATIENT)) as client:
        eventually(lambda: opens(client))
        ready(client)
        enqueue(client, 1)
        slot = next(iter(cluster.nodes.values())).ask("CLUSTER", "KEYSLOT", "palermo:{palermo}:")

        cluster.move(slot)
        enqueue(client, 2)

        assert stored(client) == 2
        enqueues_directly(client, otherwise)


_FORKING = """
import os, sys
from palermo.client.client import Client
from palermo.settings.settings import Settings
from tests.contract.test_redis_direct_calls import enqueue, ready, session_of, stored

with Client(Settings(url=sys.argv[1], publish_timeout=60.0)) as client:
    ready(client)
    [before] = session_of(client)._store._direct._idle
    if not (child := os.fork()):
        enqueue(client, 1)
        ready(client)
        enqueue(client, 2)
        sys.exit()
    enqueue(client, 3)
    assert os.waitpid(child, 0)[1] == 0
    enqueue(client, 4)
    assert [before] == list(session_of(client)._store._direct._idle)
    print(stored(client))
"""


def test_a_forked_child_leaves_the_connection_to_its_parent(node: RedisNode) -> None:
    ran = subprocess.run([sys.executable, "-c", _FORKING, node.url], capture_output=True, text=True, check=False)

    assert ran.stdout == "4\n", ran.stderr
