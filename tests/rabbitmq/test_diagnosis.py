"""The findings of the doctor on a RabbitMQ: foreign queues and exchanges, permissions, alarms, versions, policies."""

import asyncio
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pika.exceptions import ConnectionClosedByBroker

from palermo.brokers.rabbitmq import policies
from palermo.brokers.rabbitmq.amqp import versions
from palermo.brokers.rabbitmq.amqp.replies import Difference
from palermo.brokers.rabbitmq.diagnosis import clock, differing
from palermo.client.client import Client
from palermo.contract.broker import Finding, SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.core.message import Message
from palermo.errors import BrokerRefused
from palermo.inspector.doctor import broker_findings
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from palermo.worker.handle import start_worker
from tests.contract.tools import PATIENT
from tests.helpers import Stopwatch, eventually
from tests.rabbitmq.patience import have_patience
from tests.rabbitmq_node import (
    LocalNode,
    Node,
    add_user,
    clear_alarm,
    exchanges_of,
    find_server,
    free_port,
    queues_of,
    raise_alarm,
    set_permissions,
    set_policy,
    temporary_vhost,
    url_of,
)

_REPOSITORY = Path(__file__).parents[2]


def diagnosed(url: str, exchange: str, *, publish: str = "") -> dict[str, Finding]:
    async def go() -> list[Finding]:
        broker = await open_broker(SessionParameters(address=parse_url(url), exchange=exchange, timeout=PATIENT))
        try:
            if publish:
                await broker.publish(Message(id="1", queue=publish, job="shop.send", body=b"[]"))
            return await broker.diagnose()
        finally:
            await broker.close()

    return {finding.check: finding for finding in asyncio.run(go())}


@pytest.mark.parametrize(
    ("options", "level", "text"),
    [
        ({"durable": True, "arguments": {"x-message-ttl": 60_000}}, "problem", "x-message-ttl"),
        ({"durable": False}, "problem", "lost when the server restarts"),
        ({"durable": True, "arguments": {"x-max-priority": 5}}, "ok", "priorities 0 to 5"),
        ({"durable": True, "arguments": {"x-queue-type": "quorum"}}, "warning", "quorum"),
    ],
)
def test_a_queue_that_another_program_made_differently(
    rabbitmq_url: str, exchange: str, channel: Any, options: dict[str, Any], level: str, text: str
) -> None:
    try:
        channel.queue_declare(f"{exchange}.mail", **options)
    except ConnectionClosedByBroker as refusal:
        if "deprecated" in refusal.reply_text:
            return  # RabbitMQ 4.3 makes no such queue any more
        raise

    found = diagnosed(rabbitmq_url, exchange, publish="mail")

    assert found["queue mail"].level == level
    assert text in found["queue mail"].text
    channel.queue_delete(f"{exchange}.mail")


def test_an_exchange_of_another_kind_is_a_problem(rabbitmq_url: str, exchange: str, channel: Any) -> None:
    channel.exchange_declare(exchange, "fanout", durable=True)

    found = diagnosed(rabbitmq_url, exchange)

    assert found["exchange"].level == "problem"
    assert "--exchange" in found["exchange"].advice
    assert found["consume"].level == "ok"
    with pytest.raises(BrokerRefused, match="--exchange"):
        diagnosed(rabbitmq_url, exchange, publish="mail")
    channel.exchange_delete(exchange)


@pytest.fixture
def vhost(shared_node: Node) -> Iterator[str]:
    with temporary_vhost(shared_node, "diagnosis") as name:
        yield name


def tried(node: Node, vhost: str) -> list[str]:
    """The queues and exchanges that a diagnosis made to see whether it may."""
    return [name for name in queues_of(node, vhost) + exchanges_of(node, vhost) if "~check" in name]


@pytest.mark.slow
def test_each_missing_permission_is_a_problem(shared_node: Node, vhost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    have_patience(monkeypatch)
    add_user(shared_node, "visitor", "secret")
    whole, url = url_of(shared_node, vhost=vhost), url_of(shared_node, user="visitor", password="secret", vhost=vhost)
    lacking = {}
    permitted = {"declare": ("^$", ".*", ".*"), "publish": (".*", r"^palermo\.~", ".*"), "nothing": (".*", ".*", ".*")}
    for what, permissions in permitted.items():
        set_permissions(shared_node, "visitor", *permissions, vhost=vhost)
        found = diagnosed(whole, "palermo", publish="mail") and diagnosed(url, "palermo")
        lacking[what] = {check for check, finding in found.items() if finding.level == "problem"}
        assert all("set_permissions" in finding.advice for finding in found.values() if finding.level == "problem")

    assert "declare" in lacking["declare"]
    assert lacking["publish"] == {"publish"}
    assert lacking["nothing"] == set()
    assert "mail" in queues_of(shared_node, vhost)
    assert tried(shared_node, vhost) == []


def test_the_guides_permissions_are_enough(
    shared_node: Node, vhost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = (_REPOSITORY / "docs" / "guides" / "deploying.md").read_text()
    [command] = re.findall(r"^rabbitmqctl set_permissions mail (.*)$", document, re.MULTILINE)
    add_user(shared_node, "mail", "secret")
    set_permissions(shared_node, "mail", *shlex.split(command), vhost=vhost)
    url = url_of(shared_node, user="mail", password="secret", vhost=vhost)
    have_patience(monkeypatch)
    monkeypatch.chdir(_REPOSITORY / "tests" / "programs")

    found = diagnosed(url, "palermo")
    settings = Settings(url=url, publish_timeout=PATIENT)
    with Client(settings) as client, (tmp_path / "log").open("wb") as log:
        client.enqueue("crew.nothing", [], {}, queue="mail")
        client.enqueue("crew.raises", ["boom"], {}, queue="mail")
        worker = start_worker(["crew"], queues="mail", burst=True, settings=settings, log=log)
        assert worker.wait(100) == 0, (tmp_path / "log").read_text()
        failed = Inspector(client).failed.list()

    assert [finding for finding in found.values() if finding.level == "problem"] == []
    assert "crew.raises" in [row["job"] for row in failed.rows]


def test_an_alarm_is_found_and_what_was_tried_is_removed_all_the_same(shared_node: Node, vhost: str) -> None:
    raise_alarm(shared_node, "memory")
    try:
        watch = Stopwatch()
        url = url_of(shared_node, vhost=vhost)
        found = eventually(lambda: seen if (seen := diagnosed(url, "quiet"))["alarms"].level == "problem" else {})
        took = watch.seconds()
    finally:
        clear_alarm(shared_node, "memory")

    assert "memory alarm" in found["alarms"].text
    assert took < 30
    assert tried(shared_node, vhost) == []


@pytest.mark.parametrize(
    ("judge", "levels"),
    [
        (versions.server, {"3.9.29": "problem", "3.10.8": "ok", "4.3.5": "ok", "5.0.0-rc.1": "warning"}),
        (versions.client, {"1.3.1": "problem", "1.3.2": "ok", "1.4.4": "ok", "1.5.0": "problem"}),
        (versions.heartbeat, {0: "warning", 2: "warning", 60: "ok", 580: "warning"}),
        (versions.consumer_timeout, {"3.11.28": "warning", "3.12.0": "ok", "4.3.0": "ok"}),
    ],
)
def test_what_a_version_or_a_number_means(judge: Callable[[Any], Finding], levels: dict[Any, str]) -> None:
    assert {given: judge(given).level for given in levels} == levels


def test_other_products_and_older_versions_are_told_apart() -> None:
    assert versions.server("1.0", "LavinMQ").level == "warning"
    assert "rabbitmq.conf" in versions.consumer_timeout("3.11.28").advice
    assert "set_policy" in versions.consumer_timeout("3.12.0").advice


@pytest.mark.parametrize(
    ("argument", "ours", "theirs", "version", "level"),
    [
        ("x-queue-type", "'classic'", "'quorum'", "3.10.8", "warning"),
        ("x-queue-type", "'quorum'", "'classic'", "3.10.8", "warning"),
        ("x-delivery-limit", "'1000000'", "none", "3.10.8", "ok"),
        ("x-delivery-limit", "'1000000'", "the value '20' of type 'signedint'", "3.10.8", "warning"),
        ("x-delivery-limit", "'1000000'", "none", "4.0.5", "warning"),
        ("x-delivery-limit", "'1000000'", "'20'", "4.0.5", "warning"),
    ],
)
def test_a_queue_declared_otherwise(argument: str, ours: str, theirs: str, version: str, level: str) -> None:
    said = f"inequivalent arg '{argument}' for queue 'mail' in vhost '/': received {ours} but current is {theirs}"
    difference = Difference.parse(said)
    assert difference is not None
    kind = ours.strip("'") if argument == "x-queue-type" else "quorum"

    found = differing("mail", difference, version, ours=kind)

    assert found.level == level
    if argument == "x-queue-type":
        assert f"palermo migrate mail --type {kind}" in found.advice


@pytest.mark.parametrize(
    ("kind", "version", "told"),
    [
        ("classic", "3.10.8", {"x-consumer-timeout"}),
        ("classic", "3.12.0", {"x-consumer-timeout"}),
        ("classic", "4.2.9", {"x-consumer-timeout"}),
        ("classic", "4.3.0", set()),
        ("classic", "?", set()),
        ("priority", "3.10.8", {"x-max-priority", "x-consumer-timeout"}),
        ("priority", "4.3.0", {"x-max-priority"}),
        ("quorum", "3.10.8", {"x-consumer-timeout", "x-delivery-limit"}),
        ("quorum", "4.3.0", {"x-consumer-timeout", "x-delivery-limit"}),
    ],
)
def test_a_queue_is_declared_with_what_the_server_can_be_told(kind: str, version: str, told: set[str]) -> None:
    arguments = versions.arguments(kind, version)

    assert arguments["x-queue-type"] == ("classic" if kind == "priority" else kind)
    assert set(arguments) == {"x-queue-type"} | told


@pytest.mark.parametrize(
    ("kind", "version", "said"),
    [
        ("classic", "3.10.8", "palermo migrate mail --type priority"),
        ("quorum", "3.13.7", "before RabbitMQ 4.0 quorum queues have no"),
        ("quorum", "4.2.1", "before RabbitMQ 4.3 a quorum queue has only two"),
        ("quorum", "4.3.5", ""),
    ],
)
def test_a_queue_without_priorities_is_told_by_its_type_and_version(kind: str, version: str, said: str) -> None:
    found = versions.without_priorities("mail", kind, version)

    assert said in found
    assert bool(found) is bool(said)


@pytest.mark.parametrize(("stamped", "level"), [(None, "ok"), (1_000, "ok"), (1_002, "ok"), (990, "warning")])
def test_a_clock_is_compared_where_the_server_stamps_messages(stamped: int | None, level: str) -> None:
    assert clock(stamped, 1_001.5).level == level


# -- policies that take jobs away, where the management plugin shows them


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a RabbitMQ with the management plugin."""
    server, port = find_server(), free_port()
    assert server is not None
    config = f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n"
    plugins = {"enabled_plugins": b"[rabbitmq_management].\n"}
    with LocalNode(server, config=config, files=plugins) as node, pytest.MonkeyPatch.context() as patch:
        patch.setattr(policies, "PORT", port)
        for name, by_operator, pattern, rule in _POLICIES:
            set_policy(node, name, pattern, rule, by_operator=by_operator)
        with Client(Settings(url=url_of(node), publish_timeout=PATIENT)) as client:
            for queue in ("ttl", "drops", "expires", "refuses", "dead", "plain"):
                client.enqueue("shop.note", queue=queue)
            yield client


_POLICIES: tuple[tuple[str, bool, str, dict[str, object]], ...] = (
    ("ttl", True, "^ttl$", {"message-ttl": 60_000}),
    ("drops", True, "^drops$", {"max-length": 7}),
    ("expires", False, "^expires$", {"expires": 3_600_000}),
    ("refuses", False, "^refuses$", {"max-length": 7, "overflow": "reject-publish"}),
    ("dead", False, "^dead$", {"dead-letter-exchange": "amq.fanout", "message-ttl": 1_000_000}),
    ("own", False, "~facts", {"max-age": "1h"}),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queue", "text"), [("ttl", "60000 ms"), ("drops", "beyond 7"), ("expires", "3600000 ms"), ("dead", "amq.fanout")]
)
def test_the_doctor_names_a_policy_that_takes_jobs_away(client: Client, queue: str, text: str) -> None:
    found = eventually(lambda: _about(client, f"queue {queue}"))

    assert text in found[0].text
    assert "list_operator_policies" in found[0].advice
    # One that is full may refuse jobs.
    assert _about(client, "queue refuses") == _about(client, "queue plain") == []


@pytest.mark.slow
@pytest.mark.parametrize("of_another", [True, False])
def test_without_the_plugin_of_this_broker_none_can_be_seen(
    client: Client, of_another: bool, rabbitmq_url: str, exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not of_another:
        monkeypatch.setattr(policies, "PORT", free_port())
    with Client(Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=PATIENT)) as other:
        (found,) = (one for one in broker_findings(other) if one.check == "policies")

    assert "not checked" in found.text


def _about(client: Client, check: str) -> list[Finding]:
    return [one for one in broker_findings(client) if one.check == check and "policy" in one.text]
