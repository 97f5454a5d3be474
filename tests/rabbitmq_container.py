"""The same nodes, run by Docker: for machines that have an engine and no RabbitMQ of their own."""

import contextlib
import gc
import os
import time
import warnings
from collections.abc import Mapping
from typing import Any

import docker
import requests

with warnings.catch_warnings():
    # It warns of its own deprecations while it is imported, and warnings are errors here.
    warnings.simplefilter("ignore", DeprecationWarning)
    from testcontainers.core.container import DockerContainer

from tests.debian import NotInstalled
from tests.rabbitmq_node import ADVANCED_CONFIG, CONFIG, START_WITHIN, WANTED, NodeFailed, answers, free_port, url_of

#: With the version, so that a test run today and one next year meet the same broker.
_IMAGE = "rabbitmq:4.1"
_FOLDER = "/etc/palermo-test"


def engine_answers() -> bool:
    """Whether a Docker engine is there and answers."""
    with warnings.catch_warnings():
        # Where no engine listens, the client leaves its socket to the garbage collector, which warns.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            with contextlib.closing(docker.from_env(timeout=10)) as client:
                return bool(client.ping())
        except (docker.errors.DockerException, requests.RequestException):
            return False
        finally:
            gc.collect()


def image() -> str:
    """The image to run: the one that is asked for, that of the version that is asked for, or ours."""
    wanted = os.environ.get(WANTED, "")
    if not wanted or wanted.startswith("/"):
        return _IMAGE
    return wanted if ":" in wanted else f"rabbitmq:{wanted}"


def pull() -> None:
    """Fetch the image if it is not there yet. Raises NotInstalled."""
    try:
        with contextlib.closing(docker.from_env(timeout=600)) as client:
            try:
                client.images.get(image())
            except docker.errors.ImageNotFound:
                client.images.pull(image())
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise NotInstalled(f"the image {image()} cannot be fetched: {error}") from error


class ContainerNode:
    """A node in a container of its own.

    `config` and `files` as for a LocalNode; the ports that `config` opens besides the node's own go in `ports`,
    and are the same inside and outside.
    """

    def __init__(
        self, *, config: str = "", files: Mapping[str, bytes] | None = None, ports: tuple[int, ...] = ()
    ) -> None:
        self.port = free_port()
        self.host = "localhost"
        # Outside the container is not loopback, so guest must be let in from anywhere.
        config = f"listeners.tcp.default = {self.port}\nloopback_users = none\n{CONFIG}{config}\n"
        config = config.replace("{listen}", "0.0.0.0").replace("{folder}", _FOLDER)
        container = DockerContainer(image())
        container.with_copy_into_container(config.encode(), "/etc/rabbitmq/conf.d/90-test.conf", 0o644)
        container.with_copy_into_container(ADVANCED_CONFIG.encode(), "/etc/rabbitmq/advanced.config", 0o644)
        container.with_copy_into_container(b"[].\n", "/etc/rabbitmq/enabled_plugins", 0o644)
        for name, content in (files or {}).items():
            container.with_copy_into_container(content, f"{_FOLDER}/{name}", 0o644)
        for port in (self.port, *ports):
            container.with_bind_ports(port, port)
        self._container = container
        self.evaluates_at_once = False

    def __enter__(self) -> "ContainerNode":
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._container)
            self.host = self._container.get_container_host_ip()
            self._await_ready()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._undo.close()

    def start(self) -> None:
        """Start, and return once it serves AMQP; nothing if it runs."""
        self._engine.start()
        self._await_ready()

    def stop(self) -> None:
        """Stop in good order."""
        self._engine.stop(timeout=30)

    def kill9(self) -> None:
        """End its process with SIGKILL; nothing if it does not run."""
        self._engine.reload()
        if self._engine.status == "running":
            self._engine.kill()
            self._engine.wait()

    def ctl(self, *arguments: str) -> str:
        """What `rabbitmqctl -q` with these arguments prints. Takes a second or two."""
        code, output = self._engine.exec_run(["rabbitmqctl", "-q", *arguments])
        text: str = output.decode(errors="replace")
        if code:
            raise NodeFailed(f"rabbitmqctl {' '.join(arguments)}: {text}")
        return text

    def evaluate(self, expression: str) -> str:
        """The value of an Erlang expression in the node, as Erlang prints it."""
        return self.ctl("eval", f"{expression}.").strip()

    @property
    def _engine(self) -> Any:
        return self._container.get_wrapped_container()

    def _await_ready(self) -> None:
        deadline = time.monotonic() + START_WITHIN
        while not answers(self.host, self.port, url_of(self)):
            self._engine.reload()
            if self._engine.status == "exited" or time.monotonic() > deadline:
                last_words = self._engine.logs(tail=40).decode(errors="replace")
                raise NodeFailed(f"the container did not become ready. Its last words:\n{last_words}")
            time.sleep(0.05)
