"""What an operator and other programs see on RabbitMQ, and what its access rules do to commands and workers."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from palermo.core.address import parse_url
from tests.harness.processes import title
from tests.harness.rig import Rig
from tests.helpers import Stopwatch, eventually
from tests.rabbitmq_node import Node, url_of

SECRET = "s3cr3t-p4ss"


@pytest.fixture
def rig(module_node: Node, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    """On a RabbitMQ that only this module has."""
    with Rig(tmp_path, url_of(module_node), exchange, module="shop") as rig:
        yield rig


def listed(node: Node, *command: str) -> list[tuple[str, ...]]:
    """The rows that rabbitmqctl prints."""
    return [tuple(line.split("\t")) for line in node.ctl(*command).splitlines()]


def test_without_settings_jobs_go_by_exchange_palermo_to_the_queue_jobs(rig: Rig, module_node: Node) -> None:
    del rig.environment["PALERMO_EXCHANGE"]

    rig.run("enqueue", "shop.note", PALERMO_URL=f"amqp://{module_node.host}:{module_node.port}")

    assert ("palermo", "direct", "true") in listed(module_node, "list_exchanges", "name", "type", "durable")
    bindings = listed(module_node, "list_bindings", "source_name", "destination_name", "routing_key")
    assert ("palermo", "jobs", "jobs") in bindings
    queues = listed(module_node, "list_queues", "name", "durable", "messages_ready", "messages_persistent")
    assert ("jobs", "true", "1", "1") in queues


def test_every_slot_is_a_consumer_whose_tag_names_process_and_host(rig: Rig, module_node: Node) -> None:
    one, several = rig.worker("-q", "mail", "-c", "2"), rig.worker("-q", "high,low")
    rig.ready(one, several)

    def consumers(queue: str) -> list[list[str]]:
        rows = listed(module_node, "list_consumers", "queue_name", "consumer_tag", "ack_required", "prefetch_count")
        return sorted(list(row[1:]) for row in rows if row[0] == f"{rig.exchange}.{queue}")

    # One of the slots is enough for a worker to be idle.
    me = f"pid:{one.pid}@{socket.gethostname()}"
    eventually(lambda: consumers("mail") == [[f"{me}/worker-{slot}", "true", "1"] for slot in (1, 2)], every=0.2)
    # On one channel a tag is used once, so the queue's name comes after it.
    me = f"pid:{several.pid}@{socket.gethostname()}/worker-1"
    eventually(
        lambda: [[tag.startswith(me) for tag, *_ in consumers(queue)] for queue in ("high", "low")] == [[True]] * 2,
        every=0.2,
    )


def test_commands_know_queues_and_workers_without_the_management_plugin(rig: Rig, module_node: Node) -> None:
    assert "rabbitmq_management" not in module_node.ctl("eval", "rabbit_plugins:active().")
    worker, killed = rig.worker("-q", "jobs,mail"), rig.worker("-q", "other")
    rig.ready(worker, killed)
    rig.enqueue("fail", "x")
    rig.enqueue("hold", "x", queue="mail")
    rig.await_lines(1)
    rig.enqueue("note", "waits")

    def counts() -> dict[str, tuple[int, int, int]]:
        return {row["name"]: (row["pending"], row["in_progress"], row["workers"]) for row in rig.rows("queues")}

    # A worker that is slow to answer is in neither listing.
    serving = {"failed": (1, 0, 0), "jobs": (1, 0, 1), "mail": (0, 1, 1), "other": (0, 0, 1)}
    eventually(lambda: counts() == serving, every=0.2)
    eventually(lambda: {row["pid"] for row in rig.rows("workers")} == {worker.pid, killed.pid}, every=0.2)
    assert [row["args"] for row in rig.rows("jobs", "jobs")] == [["waits"]]

    killed.kill9()
    watch = Stopwatch()
    eventually(lambda: [row["pid"] for row in rig.workers()] == [worker.pid])
    assert watch.seconds() < 2  # one, and another for machines that are busy with tests


# -- access


def test_the_password_in_a_url_or_a_file_is_never_shown(rig: Rig, module_node: Node) -> None:
    module_node.ctl("add_vhost", "till")
    module_node.ctl("add_user", "clerk", SECRET)
    module_node.ctl("set_permissions", "-p", "till", "clerk", ".*", ".*", ".*")
    ((host, port),) = parse_url(rig.url).hosts
    (rig.path / "password").write_text(f"{SECRET}\n")
    rig.environment["PALERMO_URL"] = "amqp://127.0.0.1:1/"
    parts = ["--host", host, "--port", f"{port}", "--user", "clerk", "--vhost", "till", "--password-file", "password"]
    whole = ["--url", url_of(module_node, user="clerk", password=SECRET, vhost="till")]

    done = [rig.run("enqueue", "shop.hold", "--args", '["x"]', "-q", "jobs", *flags) for flags in (parts, whole)]
    workers = [rig.worker("-q", "jobs", *flags) for flags in (parts, whole)]
    rig.await_lines(2)
    titles = "".join(title(pid) for worker in workers for pid in worker.tree())
    done += [rig.run("workers", *flags) for flags in (parts, whole)]
    rig.open_gate()
    rig.await_lines(4)

    assert [each.returncode for each in done] == [0] * 4
    shown = [titles, *(worker.log for worker in workers), *(each.stdout + each.stderr for each in done)]
    assert not any(SECRET in text for text in shown)
    assert "palermo worker" in titles
    assert all("clerk" in worker.log for worker in workers)


@pytest.mark.parametrize(
    ("access", "said"),
    [
        ({"user": "guest", "password": "wr0ng-s3cret"}, "password"),
        ({"user": "nobody", "password": "wr0ng-s3cret"}, "nobody"),
        ({"vhost": "no such vhost"}, "no such vhost"),
    ],
    ids=["password", "user", "vhost"],
)
def test_a_broker_that_refuses_ends_commands_and_workers_in_one_line(
    rig: Rig, module_node: Node, access: dict[str, str], said: str
) -> None:
    url = url_of(module_node, **access)

    listing = rig.run("queues", "--url", url)
    worker = rig.worker(PALERMO_URL=url)

    assert (listing.returncode, worker.wait()) == (3, 3)
    for line in (*listing.stderr.splitlines(), worker.log.splitlines()[-1]):
        assert "BrokerRefused" in line
        assert said in line
    assert len(listing.stderr.splitlines()) == 1
    assert not any("wr0ng" in text or "Traceback" in text for text in (worker.log, listing.stderr))


def test_a_worker_outlasts_permissions_and_passwords_that_are_taken_away(rig: Rig, module_node: Node) -> None:
    module_node.ctl("add_user", "changing", SECRET)
    module_node.ctl("set_permissions", "changing", "^$", "^$", "^$")
    worker = rig.worker(PALERMO_URL=url_of(module_node, user="changing", password=SECRET))
    eventually(lambda: "permission" in worker.log)

    module_node.ctl("set_permissions", "changing", ".*", ".*", ".*")
    eventually(lambda: "connected broker" in worker.log)
    module_node.ctl("change_password", "changing", "another")
    module_node.ctl("close_all_user_connections", "changing", "the password has changed")
    eventually(lambda: "broker unavailable" in worker.log.partition("connected broker")[2])
    module_node.ctl("change_password", "changing", SECRET)

    eventually(lambda: worker.log.count("connected broker") >= 2)
    assert worker.alive


# -- other programs


def test_a_worker_shares_the_queue_of_its_group_with_another_program(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    (rig.path / "audited.py").write_text(
        "import palermo\nfrom shop import write\n\n"
        "@palermo.subscribe('order.*', group='audit')\n"
        "def audit(number):\n    write('notes', str(number))\n"
    )
    rig.ready(rig.worker("-q", f"{rig.exchange}_audit", modules=("audited",)))
    taken: list[bytes] = []

    def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        taken.append(body)
        channel.basic_ack(method.delivery_tag)

    with pika.BlockingConnection(pika.URLParameters(rig.url)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(f"{rig.exchange}_audit", take)

        def handled() -> int:
            connection.process_data_events(0.0)
            return len(taken) + len(rig.lines())

        for number in range(20):
            rig.client.publish("order.paid", number)
            eventually(lambda count=number + 1: handled() == count)  # type: ignore[misc]

    # RabbitMQ gives each consumer that waits its turn.
    assert len(taken) >= 5
    assert len(rig.lines()) >= 5


def test_a_foreign_message_that_fails_keeps_its_body_and_properties(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    body = b'["nobody"]  '
    headers = {"job-class": "shop.Send", "x-mine": [1, {"a": True}], "created-at": 1_700_000_000}
    content_type = "application/json; charset=utf-8"
    rig.enqueue("note", "makes the queue", queue="mail")
    rig.put("mail", body, headers=headers, content_type=content_type, message_id="m-1", app_id="other")

    rig.burst("-q", "mail")

    properties, found = rig.get("failed")
    assert (found, properties.content_type, properties.message_id) == (body, content_type, "m-1")
    assert (properties.delivery_mode, properties.app_id) == (2, "other")
    assert properties.headers.items() >= {**headers, "queue": "mail", "retries": 0}.items()
    assert properties.headers["exception-class"] == "LookupError"
    assert properties.headers["exception-message"] == "no address for hi"
    assert isinstance(properties.headers["failed-at"], int)
    assert properties.headers["stack-trace"].startswith("Traceback")


def test_headers_that_leave_no_room_for_the_failure_are_dropped(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    rig.enqueue("note", "makes the queue", queue="mail")
    headers = {"job-class": "shop.fail", "x-large": "y" * 120_000, "x-small": "kept"}
    rig.put("mail", b'["text"]', headers=headers, message_id="m-1")

    rig.burst("-q", "mail")

    properties, body = rig.get("failed")
    assert (properties.message_id, body) == ("m-1", b'["text"]')
    assert properties.headers["exception-class"] == "ValueError"
    assert properties.headers["x-small"] == "kept"
    assert "x-large" in properties.headers or properties.headers["dropped-headers"] == "x-large"


#: What other programs may publish, and the class of the failure that it ends in.
MESSAGES: dict[str, tuple[bytes, dict[str, object], str]] = {
    "no job named": (b"[]", {"headers": {}}, "JobUnnamed"),
    "unknown job": (b"[]", {"headers": {"job-class": "nobody.knows"}}, "JobNotFound"),
    "no json": (b"[1,", {}, "DecodeError"),
    "no utf-8": (b'["\xff"]', {}, "DecodeError"),
    "unknown type": (b"x", {"content_type": "text/x-odd"}, "MediaTypeUnknown"),
    "pickle": (b"x", {"content_type": "application/x-pickle"}, "MediaTypeRefused"),
    "damaged gzip": (b"x", {"content_encoding": "gzip"}, "DecodeError"),
    "wrong arguments": (b"[1, 2, 3]", {}, "ArgumentsInvalid"),
    "header of a wrong type": (b'["x"]', {"headers": {"job-class": "shop.note", "retries": "two"}}, "HeaderInvalid"),
}


def test_every_message_that_cannot_run_is_a_failed_job_with_its_body(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    rig.enqueue("note", "makes the queue")
    for name, (body, properties, _) in MESSAGES.items():
        rig.put("jobs", body, **{"message_id": name, "headers": {"job-class": "shop.note"}, **properties})
    rig.enqueue("note", "after")

    rig.burst()

    assert rig.lines() == ["makes the queue", "after"]
    errors = {id: error.class_name for id, error in rig.errors().items()}
    assert errors == {name: f"palermo.errors.{error}" for name, (*_, error) in MESSAGES.items()}

    def bodies() -> dict[str, bytes]:
        return {one.id: one.body for one in rig.client.run(lambda broker: broker.browse("failed")).messages}

    # Right after a look RabbitMQ may count a job less for an instant.
    eventually(lambda: bodies() == {name: body for name, (body, *_) in MESSAGES.items()})
