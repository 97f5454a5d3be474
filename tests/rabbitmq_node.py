"""RabbitMQ nodes that belong to the tests: started, stopped and killed at will, and gone without a trace.

A node has its own ports, data, cookie and epmd, listens on loopback only, loads no plugin and
reads none of the machine's own RabbitMQ configuration, so several run at once beside each other
and beside an installed one. Nothing here asks for root, and nothing minds it.
"""

import contextlib
import fcntl
import functools
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import pika
from pika.exceptions import AMQPError

from palermo.brokers.rabbitmq.amqp import versions
from tests import rabbitmq_versions
from tests.helpers import eventually

#: The environment variable that names the RabbitMQ to test on: a version ("4.3"), the path of a rabbitmq-server, or an
#: image of Docker's ("rabbitmq:4.2").
WANTED = "PALERMO_TEST_RABBITMQ"

#: Seconds a node may take to answer: 5 to 8 on two idle cores, a minute when others keep them busy.
START_WITHIN = 180.0
_STOP_WITHIN = 90.0

#: The rabbitmq.conf of each node: 4.0 and later take messages of 16 MiB at most, unless they are told otherwise.
CONFIG = "max_message_size = 134217728\n"

#: What RabbitMQ has deprecated. No node allows it, whatever its version still allows; 3.10 knows no such setting.
_DEPRECATED = (
    "amqp_address_v1",
    "amqp_filter_set_bug",
    "classic_queue_mirroring",
    "global_qos",
    "management_metrics_collection",
    "queue_master_locator",
    "ram_node_type",
    "transient_nonexcl_queues",
)
_DENIED = ", ".join(f"{name} => false" for name in _DEPRECATED)
ADVANCED_CONFIG = f"[{{rabbit, [{{permit_deprecated_features, #{{{_DENIED}}}}}]}}].\n"

#: What RabbitMQ 4.0.5 may say as it starts on the data of a killed node: it looks for such queues before it has read
#: its queues, and takes that error for one. It starts when it is started again.
_DENIED_TOO_EARLY = "[transient_nonexcl_queues]"

#: Below the ports that systems hand out for outgoing connections (32768 and up on Linux, 49152 on macOS): a node
#: that is down for a while must find its port still free.
_PORTS = range(12_000, 32_000)
_given: set[int] = set()

#: In this file every port has a byte, which is locked by the process of tests that was given the port: processes that
#: run beside each other must not be given the port of a node that is down, or has not begun to listen.
_LOCKS = Path(tempfile.gettempdir()) / f"palermo-test-ports-{os.getuid()}"

#: Where the server is when it is not on the PATH, as for a normal user on Debian. The first is Debian's real script:
#: the one in /usr/sbin changes to the user rabbitmq, who may not write to a private folder.
_USUAL_PLACES = ("/usr/lib/rabbitmq/bin", "/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin")

#: Ends with its standard input, that is with the tests, however they end; then kills what still runs and tidies up.
_GUARD = """
cat >/dev/null
for file in "$1"/groups/*; do
    [ -e "$file" ] && kill -KILL -"${file##*/}"
done
rm -rf "$1"
"""


class NodeFailed(Exception):
    """A node did not start, stop or obey; the text ends with what it said."""


class Node(Protocol):
    """A broker that a test may harm. Its data outlives everything but the end of its context."""

    #: Where it listens: loopback, unless it runs in a container on another machine.
    host: str
    port: int
    #: Whether `evaluate` takes milliseconds, as `erl_call` does, and not as long as `ctl`.
    evaluates_at_once: bool

    def start(self) -> None:
        """Start, and return once it serves AMQP; nothing if it runs."""

    def stop(self) -> None:
        """Stop in good order."""

    def kill9(self) -> None:
        """End its process with SIGKILL."""

    def ctl(self, *arguments: str) -> str:
        """What `rabbitmqctl -q` with these arguments prints. Takes a second or two of the processor."""

    def evaluate(self, expression: str) -> str:
        """The value of an Erlang expression in the node, as Erlang prints it."""


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Leave nothing behind even if these tests are killed: neither the folder nor the process groups named in it."""
    (folder / "groups").mkdir()
    command = ["sh", "-c", _GUARD, "sh", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True):
        yield


def with_durable_streams(node: Node) -> Node:
    """Make the first stream of a node that has just started, and have the node write down that it serves streams.

    RabbitMQ starts the one process that looks after all streams with the first of them, and writes its name to the disk
    a second or so later (dets:sync). A node that is killed in between never opens its streams again (3.10.8).
    """
    with pika.BlockingConnection(pika.URLParameters(url_of(node))) as connection:
        channel = connection.channel()
        channel.queue_declare("first-stream", durable=True, arguments={"x-queue-type": "stream"})
        channel.queue_delete("first-stream")
    node.evaluate("lists:map(fun dets:sync/1, dets:all())")
    return node


def set_policy(node: Node, name: str, pattern: str, rule: Mapping[str, object], *, by_operator: bool = False) -> None:
    """Do what `rabbitmqctl set_policy` does for queues, or `set_operator_policy`.

    Like the other functions here, without the second of processor time that rabbitmqctl takes to start.
    """
    function = "rabbit_policy:parse_set_op" if by_operator else "rabbit_policy:parse_set"
    _order(node, function, "/", name, pattern, json.dumps(rule), 0, "queues")


def clear_policy(node: Node, name: str) -> None:
    """Do what `rabbitmqctl clear_policy` does."""
    _order(node, "rabbit_policy:delete", "/", name)


def add_user(node: Node, name: str, password: str) -> None:
    """Do what `rabbitmqctl add_user` does."""
    _order(node, "rabbit_auth_backend_internal:add_user", name, password)


def change_password(node: Node, name: str, password: str) -> None:
    """Do what `rabbitmqctl change_password` does."""
    _order(node, "rabbit_auth_backend_internal:change_password", name, password)


def set_permissions(node: Node, user: str, *patterns: str, vhost: str = "/") -> None:
    """Do what `rabbitmqctl set_permissions` does: set what a user may configure, write and read in a virtual host."""
    _order(node, "rabbit_auth_backend_internal:set_permissions", user, vhost, *patterns)


def add_vhost(node: Node, name: str) -> None:
    """Do what `rabbitmqctl add_vhost` does."""
    _order(node, "rabbit_vhost:add", name)


def delete_vhost(node: Node, name: str) -> None:
    """Do what `rabbitmqctl delete_vhost` does."""
    _order(node, "rabbit_vhost:delete", name)


@contextlib.contextmanager
def temporary_vhost(node: Node, name: str) -> Iterator[str]:
    """A virtual host where `guest` may do anything, and which ends with everything in it. Yields its name."""
    add_vhost(node, name)
    set_permissions(node, "guest", ".*", ".*", ".*", vhost=name)
    yield name
    delete_vhost(node, name)


def set_vhost_limits(node: Node, vhost: str, limits: Mapping[str, int]) -> None:
    """Do what `rabbitmqctl set_vhost_limits` does."""
    _order(node, "rabbit_vhost_limit:parse_set", vhost, json.dumps(limits))


def close_connections(node: Node, user: str) -> None:
    """Do what `rabbitmqctl close_all_user_connections` does, "by the operator"."""
    of_user = f"rabbit_networking:connection_info(One, [user]) =:= [{{user, {binary(user)}}}]"
    close = 'rabbit_networking:close_connection(One, "by the operator")'
    node.evaluate(f"[{close} || One <- rabbit_networking:connections(), {of_user}]")


def raise_alarm(node: Node, resource: str) -> None:
    """Do what a lack of memory or of free disk does ("memory", "disk"), and wait until RabbitMQ has noticed it."""
    node.evaluate(_LIMITS[resource].format(_UNREACHABLE[resource]))
    # Its own tick is ten seconds for the disk.
    eventually(lambda: node.evaluate("rabbit_alarm:get_alarms()") != "[]")


def clear_alarm(node: Node, resource: str) -> None:
    """End what `raise_alarm` began, and wait until RabbitMQ has noticed it."""
    node.evaluate(_LIMITS[resource].format(_USUAL[resource]))
    eventually(lambda: node.evaluate("rabbit_alarm:get_alarms()") == "[]")


_LIMITS = {
    "memory": "vm_memory_monitor:set_vm_memory_high_watermark({})",
    "disk": "rabbit_disk_monitor:set_disk_free_limit({})",
}
_UNREACHABLE = {"memory": "0.000001", "disk": "900000000000000"}
_USUAL = {"memory": "0.4", "disk": "50000000"}


def _order(node: Node, function: str, *values: str | int) -> None:
    """Call a function of RabbitMQ's, whose last argument names the user who calls it."""
    written = (f"{value}" if isinstance(value, int) else binary(value) for value in (*values, "tests"))
    done = node.evaluate(f"{function}({', '.join(written)})")
    assert done == "ok", done


def queues_of(node: Node, vhost: str = "/") -> list[str]:
    """The names of all queues of a virtual host."""
    queues = f"[amqqueue:get_name(Queue) || Queue <- rabbit_amqqueue:list({binary(vhost)})]"
    return _names(node, queues)


def exchanges_of(node: Node, vhost: str = "/") -> list[str]:
    """The names of all exchanges of a virtual host."""
    return _names(node, f"[element(2, Exchange) || Exchange <- rabbit_exchange:list({binary(vhost)})]")


def _names(node: Node, resources: str) -> list[str]:
    printed = node.evaluate(f"[binary_to_list(element(4, Resource)) || Resource <- {resources}]")
    return re.findall(r'"([^"]*)"', printed)


def binary(text: str) -> str:
    """The text as a binary of Erlang."""
    return f"<<{','.join(map(str, text.encode()))}>>"


def url_of(node: Node, *, user: str = "guest", password: str = "guest", vhost: str = "/") -> str:
    """The AMQP URL of a node."""
    credentials = f"{quote(user, safe='')}:{quote(password, safe='')}"
    return f"amqp://{credentials}@{node.host}:{node.port}/{quote(vhost, safe='')}"


def version_of(url: str) -> tuple[int, ...]:
    """The version of the RabbitMQ at this URL."""
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        return versions.parse(connection._impl.server_properties["version"])


def free_port() -> int:
    """A port that nobody listens on, and that no living process of tests was given before."""
    for _ in range(1_000):
        port = random.choice(_PORTS)
        if port in _given or not _reserve(port):
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port
    raise NodeFailed("no free port from 12000 to 31999.")


def _reserve(port: int) -> bool:
    """Reserve a port for as long as this process lives. Returns False if another process has it."""
    try:
        fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@functools.cache
def _locks() -> int:
    # Never closed: closing it would free the ports.
    return os.open(_LOCKS, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)


def answers(host: str, port: int, url: str) -> bool:
    """Whether a broker lets us in there: a whole AMQP handshake, not just a port that accepts.

    The first bytes are asked for by hand, since a node that boots (or a container's proxy) hangs up, and the
    client library would log each attempt as an error.
    """
    try:
        with socket.create_connection((host, port), timeout=5) as probe:
            probe.sendall(b"AMQP\x00\x00\x09\x01")
            if probe.recv(1) != b"\x01":
                return False
        pika.BlockingConnection(pika.URLParameters(url)).close()
    except (OSError, AMQPError):
        return False
    return True


def find_server() -> Path | None:
    """The script that starts the RabbitMQ server that PALERMO_TEST_RABBITMQ asks for, else an installed one.

    Raises NotInstalled if the one that is asked for cannot be had.
    """
    if wanted := os.environ.get(WANTED):
        return Path(wanted) if wanted.startswith("/") else rabbitmq_versions.server_of(wanted)
    path = os.pathsep.join([_USUAL_PLACES[0], os.environ.get("PATH", ""), *_USUAL_PLACES[1:]])
    found = shutil.which("rabbitmq-server", path=path)
    return Path(found) if found else None


def _find_epmd(server: Path) -> str:
    """Erlang's port mapper, which sits beside the server's script, beside `erl` or in its erts folder."""
    if found := shutil.which("epmd", path=f"{server.parent}{os.pathsep}{os.environ.get('PATH', '')}"):
        return found
    ask = "io:format('~s/erts-~s/bin/epmd', [code:root_dir(), erlang:system_info(version)]), halt()."
    return subprocess.run(
        ["erl", "-noshell", "-eval", ask], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    ).stdout


class LocalNode:
    """A node run from the installed rabbitmq-server, in a folder of its own.

    In `config`, the text of a rabbitmq.conf, `{listen}` stands for the address to listen on and `{folder}` for the
    folder in which the node finds `files`. A node that is given a `friend` shares the cookie and port mapper of
    that one, and must end before it: so they can form a cluster.
    """

    host = "127.0.0.1"

    def __init__(
        self,
        server: Path,
        *,
        config: str = "",
        files: Mapping[str, bytes] | None = None,
        friend: "LocalNode | None" = None,
    ) -> None:
        self._server = server
        self._config = config
        self._files = files or {}
        self._friend = friend
        self.port = free_port()
        self.name = f"palermo-{secrets.token_hex(4)}@localhost"
        self.cookie: str = friend.cookie if friend else secrets.token_hex(16)
        self.epmd_port: int = friend.epmd_port if friend else free_port()
        self._dist_port = free_port()
        self._node: subprocess.Popen[bytes] | None = None
        self._erl_call = shutil.which("erl_call", path=f"{server.parent}{os.pathsep}{os.environ.get('PATH', '')}")
        self.evaluates_at_once = self._erl_call is not None

    def __enter__(self) -> "LocalNode":
        self.folder = Path(tempfile.mkdtemp(prefix="palermo-rabbitmq-"))
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            undo.enter_context(guarded(self.folder))
            self._write_files()
            if self._friend is None:
                undo.enter_context(self._running_epmd())
            undo.callback(self.kill9)
            self.start()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._undo.close()

    def configure(self, config: str) -> None:
        """Another text of its rabbitmq.conf, before it is started for the first time."""
        self._config = config

    @property
    def runs(self) -> bool:
        """Whether it was started and neither stopped nor killed."""
        return self._node is not None

    @property
    def pid(self) -> int:
        """The head of its processes; 0 if it does not run."""
        return 0 if self._node is None else self._node.pid

    def start(self) -> None:
        """Start, and return once it serves AMQP; nothing if it runs."""
        if self._node is not None:
            return
        node = self._launch()
        deadline = time.monotonic() + START_WITHIN
        while not answers(self.host, self.port, url_of(self)):
            is_over = time.monotonic() > deadline
            if node.poll() is not None or is_over:
                self.kill9()
                if _DENIED_TOO_EARLY not in self._last_words() or is_over:
                    raise NodeFailed(f"{self._server} did not become ready. Its last words:\n{self._last_words()}")
                node = self._launch()
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop in good order: the Erlang machine shuts its applications down on SIGTERM, which takes about a second."""
        if self._node is None:
            return
        # To the whole group, as a terminal does: the starting script waits for the machine and ignores nothing.
        os.killpg(self._node.pid, signal.SIGTERM)
        try:
            self._node.wait(_STOP_WITHIN)
            self._await_release()
        finally:
            self.kill9()

    def kill9(self) -> None:
        """End its process with SIGKILL; nothing if it does not run."""
        if self._node is not None:
            self._end(self._node)
            self._await_release()
            self._node = None

    def ctl(self, *arguments: str) -> str:
        """What `rabbitmqctl -q` with these arguments prints. Takes a second or two."""
        command = [str(self._server.with_name("rabbitmqctl")), "-q", "-n", self.name, *arguments]
        done = subprocess.run(
            command, env=self._environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180
        )
        if done.returncode:
            raise NodeFailed(f"rabbitmqctl {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def evaluate(self, expression: str) -> str:
        """The value of an Erlang expression in the node, as Erlang prints it."""
        if self._erl_call is None:
            return self.ctl("eval", f"{expression}.").strip()
        # A small program in C, and not another Erlang machine, as rabbitmqctl is. A node refuses a second connection
        # under a name, also one whose predecessor it has not yet seen end.
        name = f"tests-{secrets.token_hex(4)}"
        command = [self._erl_call, "-c", self.cookie, "-h", name, "-n", self.name, "-e"]
        done = subprocess.run(
            command, env=self._environment(), input=f"{expression}.\n", capture_output=True, text=True, timeout=180
        )
        value = done.stdout.strip()
        if done.returncode or not value.startswith("{ok, "):
            raise NodeFailed(f"{expression}: {value}{done.stderr}")
        return value.removeprefix("{ok, ").removesuffix("}")

    def _environment(self) -> dict[str, str]:
        foreign = ("RABBITMQ_", "ERL_", "ERLANG_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        # Erlang's schedulers spin for a while before they sleep, which few cores shared with the tests cannot spare.
        no_spinning = "+sbwt none +sbwtdcpu none +sbwtdio none"
        return inherited | {
            "HOME": str(self.folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._dist_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{no_spinning} {loopback}",
            "RABBITMQ_CTL_ERL_ARGS": loopback,
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "no-such-file"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONFIG_FILES": str(self.folder / "no-such-folder" / "*.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
        }

    def _launch(self) -> subprocess.Popen[bytes]:
        with (self.folder / "output").open("ab") as output:
            # Held by every process that inherits the file, so that its release says that all of them are gone.
            fcntl.flock(output, fcntl.LOCK_EX)
            self._node = self._spawn([str(self._server)], output=output.fileno())
        return self._node

    def _write_files(self) -> None:
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(self.cookie)
        cookie.chmod(0o400)
        (self.folder / "enabled_plugins").write_text("[].\n")
        (self.folder / "advanced.config").write_text(ADVANCED_CONFIG)
        config = self._config.replace("{listen}", self.host).replace("{folder}", str(self.folder))
        (self.folder / "rabbitmq.conf").write_text(f"{CONFIG}{config}\n")
        for name, content in self._files.items():
            (self.folder / name).write_bytes(content)

    @contextlib.contextmanager
    def _running_epmd(self) -> Iterator[None]:
        # Ours, and in the foreground: the one that a node starts by itself outlives it.
        epmd = self._spawn([_find_epmd(self._server), "-port", str(self.epmd_port), "-address", "127.0.0.1"])
        try:
            self._await_epmd(epmd)
            yield
        finally:
            self._end(epmd)

    def _await_epmd(self, epmd: subprocess.Popen[bytes]) -> None:
        """A node that finds no epmd starts one."""
        deadline = time.monotonic() + START_WITHIN
        while epmd.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.epmd_port), timeout=10).close()
                return
            time.sleep(0.01)
        raise NodeFailed(f"epmd does not listen on port {self.epmd_port}.")

    def _spawn(self, command: list[str], output: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start a process as the head of a group of its own: Ctrl-C is for pytest, which then ends it in order."""
        process = subprocess.Popen(
            command,
            env=self._environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        (self.folder / "groups" / str(process.pid)).touch()
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        # macOS says PermissionError where nothing but a zombie is left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        (self.folder / "groups" / str(process.pid)).unlink(missing_ok=True)

    def _await_release(self) -> None:
        """Wait until no process of the node is left: a second one on data still in use would not start.

        Not by asking for the process group: in a container whose first process reaps nobody, zombies stay in it.
        """
        deadline = time.monotonic() + _STOP_WITHIN
        with (self.folder / "output").open("rb") as output:
            while time.monotonic() < deadline:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                time.sleep(0.01)
        raise NodeFailed(f"node {self.name} does not end.")

    def _last_words(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-3_000:]
