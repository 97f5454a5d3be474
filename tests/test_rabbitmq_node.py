"""The nodes that other tests rely on."""

import subprocess
import sys

import pika
import pytest

from tests import rabbitmq_found
from tests.debian import NotInstalled
from tests.rabbitmq_node import free_port, version_of

pytestmark = pytest.mark.slow


def test_a_node_allows_nothing_that_rabbitmq_has_deprecated(rabbitmq_url: str) -> None:
    if version_of(rabbitmq_url) < (4,):
        pytest.skip("RabbitMQ before 4.0 cannot be told so")
    with pytest.raises(pika.exceptions.AMQPError, match="deprecated"):
        pika.BlockingConnection(pika.URLParameters(rabbitmq_url)).channel().queue_declare("transient", durable=False)


def test_a_port_is_given_to_one_process_of_tests_at_a_time() -> None:
    port = free_port()
    ask = f"from tests import rabbitmq_node as node; node._PORTS = [{port}]; node.free_port()"

    other = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=False)

    assert "NodeFailed" in other.stderr


def test_without_any_broker_the_tests_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setattr(rabbitmq_found, "find_server", lambda: None)
    monkeypatch.setattr(rabbitmq_found, "can_install", lambda: False)

    with pytest.raises(NotInstalled, match=r"(?s)apt-get install rabbitmq-server.*brew install.*PALERMO_TEST_URL"):
        rabbitmq_found.find.__wrapped__()
