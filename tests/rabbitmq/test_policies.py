"""The doctor names policies that take jobs away, where the management plugin shows them, and says where it does not."""

from collections.abc import Iterator

import pytest

from palermo.brokers.rabbitmq import policies
from palermo.client.client import Client
from palermo.contract.broker import Finding
from palermo.inspector.doctor import broker_findings
from palermo.settings.settings import Settings
from tests.contract.tools import PATIENT
from tests.helpers import eventually
from tests.rabbitmq_node import LocalNode, find_server, free_port, url_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a RabbitMQ with the management plugin."""
    server, port = find_server(), free_port()
    assert server is not None
    config = f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n"
    plugins = {"enabled_plugins": b"[rabbitmq_management].\n"}
    with LocalNode(server, config=config, files=plugins) as node, pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies, "PORT", port)
        for name, kind, pattern, definition in _POLICIES:
            node.ctl(kind, name, pattern, definition, "--apply-to", "queues")
        with Client(Settings(url=url_of(node), publish_timeout=PATIENT)) as client:
            for queue in ("ttl", "drops", "expires", "refuses", "dead", "plain"):
                client.enqueue("shop.note", queue=queue)
            yield client


_POLICIES = (
    ("ttl", "set_operator_policy", "^ttl$", '{"message-ttl": 60000}'),
    ("drops", "set_operator_policy", "^drops$", '{"max-length": 7}'),
    ("expires", "set_policy", "^expires$", '{"expires": 3600000}'),
    ("refuses", "set_policy", "^refuses$", '{"max-length": 7, "overflow": "reject-publish"}'),
    ("dead", "set_policy", "^dead$", '{"dead-letter-exchange": "amq.fanout", "message-ttl": 1000000}'),
    ("own", "set_policy", "~facts", '{"max-age": "1h"}'),
)


@pytest.mark.parametrize(
    ("queue", "text"), [("ttl", "60000 ms"), ("drops", "beyond 7"), ("expires", "3600000 ms"), ("dead", "amq.fanout")]
)
def test_the_doctor_names_a_policy_that_takes_jobs_away(client: Client, queue: str, text: str) -> None:
    found = eventually(lambda: _about(client, f"queue {queue}"))

    assert text in found[0].text
    assert "list_operator_policies" in found[0].advice
    # One that is full may refuse jobs.
    assert _about(client, "queue refuses") == _about(client, "queue plain") == []


@pytest.mark.parametrize("of_another", [True, False])
def test_without_the_plugin_of_this_broker_none_can_be_seen(
    client: Client, of_another: bool, rabbitmq_url: str, exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not of_another:
        monkeypatch.setattr(policies, "PORT", free_port())
    with Client(Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=PATIENT)) as other:
        (found,) = (one for one in broker_findings(other) if one.check == "policies")

    assert "not seen" in found.text


def _about(client: Client, check: str) -> list[Finding]:
    return [one for one in broker_findings(client) if one.check == check and "policy" in one.text]
