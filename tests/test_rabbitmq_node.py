"""The nodes that other tests rely on."""

import subprocess
import sys

import pika
import pytest

from tests import rabbitmq_found
from tests.debian import NotInstalled
from tests.rabbitmq_node import Node, free_port, url_of, version_of

pytestmark = pytest.mark.slow


def store(node: Node, body: bytes) -> None:
    with pika.BlockingConnection(pika.URLParameters(url_of(node))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("kept", durable=True)
        channel.basic_publish("", "kept", body, pika.BasicProperties(delivery_mode=2))


def stored(node: Node) -> list[bytes]:
    with pika.BlockingConnection(pika.URLParameters(url_of(node))) as connection:
        channel = connection.channel()
        channel.queue_declare("kept", durable=True)
        bodies = []
        while (body := channel.basic_get("kept")[2]) is not None:
            bodies.append(body)
        return bodies


def test_a_private_node_keeps_its_data_when_killed(private_node: Node, rabbitmq_url: str) -> None:
    store(private_node, b"kept")
    # Also time for what RabbitMQ writes later than it says: a queue declared in the last moment may be lost.
    private_node.ctl("add_vhost", "mine")

    private_node.kill9()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        stored(private_node)
    private_node.start()

    assert stored(private_node) == [b"kept"]
    assert "mine" in private_node.ctl("list_vhosts").split()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.URLParameters(rabbitmq_url.rpartition("/")[0] + "/mine"))


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
