"""Finds the RabbitMQ that the tests run on: the first of these that works here.

    PALERMO_TEST_URL            for tests that leave a broker as they found it
    Docker                      an engine that answers and has, or can fetch, the image
    rabbitmq-server             installed here, run as a private node
    apt-get install             as root on Debian or Ubuntu, and then the same

If none works, the tests fail and say what to install. They never skip. PALERMO_TEST_RABBITMQ names another RabbitMQ
than the one that would be found (rabbitmq_node.py).
"""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import Protocol

from tests.debian import NotInstalled, can_install, first_of, install
from tests.rabbitmq_node import WANTED, LocalNode, Node, find_server

_ADVICE = """no RabbitMQ for the tests. Do one of these and run them again:
  * start Docker;
  * install RabbitMQ 3.10 or later (Debian, Ubuntu: apt-get install rabbitmq-server; macOS: brew install rabbitmq);
  * set PALERMO_TEST_URL=amqp://user:password@host:5672/vhost (not enough for tests that restart a broker)."""


class Launch(Protocol):
    """How to make a private node; it starts when its context is entered.

    `config` is the text of a rabbitmq.conf, in which `{listen}` stands for the address to listen on and `{folder}`
    for the folder that holds `files`. `ports` are those that it opens besides AMQP's own.
    """

    def __call__(
        self, *, config: str = "", files: Mapping[str, bytes] | None = None, ports: tuple[int, ...] = ()
    ) -> AbstractContextManager[Node]: ...


def given_url() -> str | None:
    """The broker that the environment names for the tests."""
    return os.environ.get("PALERMO_TEST_URL") or None


@cache
def find() -> Launch:
    """The way to make private nodes here. May take minutes the first time: it may download a broker.

    Raises NotInstalled.
    """
    wanted = os.environ.get(WANTED, "")
    if not wanted:
        ways: tuple[Callable[[], Launch], ...] = (_docker, _installed, _from_packages)
    else:
        ways = (_installed,) if wanted.startswith("/") else (_docker,) if ":" in wanted else (_docker, _installed)
    return first_of(_ADVICE, *ways)


def _docker() -> Launch:
    # Imported late: it brings half of Docker's client along, and most test runs need none of it.
    from tests import rabbitmq_container

    if not rabbitmq_container.engine_answers():
        raise NotInstalled("Docker: no engine answers.")
    rabbitmq_container.pull()
    return rabbitmq_container.ContainerNode


def _installed() -> Launch:
    server = find_server()
    if server is None:
        raise NotInstalled("rabbitmq-server: not on the PATH.")

    def launch(*, config: str = "", files: Mapping[str, bytes] | None = None, ports: tuple[int, ...] = ()) -> LocalNode:
        return LocalNode(server, config=config, files=files)

    return launch


def _from_packages() -> Launch:
    if not can_install():
        raise NotInstalled("apt-get install rabbitmq-server: not root on a Debian or Ubuntu system.")
    install("rabbitmq-server")
    return _installed()
