"""Promises of the original Palermo on a RabbitMQ of their own: P3, P6, P12, P13, P18; and U3."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from palermo.core.address import parse_url
from palermo.settings.settings import Settings
from tests.harness.processes import title
from tests.harness.rig import Rig
from tests.helpers import Stopwatch, eventually
from tests.rabbitmq_node import Node, url_of


@pytest.fixture
def rig(module_node: Node, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    """On a RabbitMQ that only this module has."""
    with Rig(tmp_path, url_of(module_node), exchange, module="shop") as rig:
        yield rig


def test_P3_jobs_in_the_embedded_broker_survive_the_end_of_every_process(sqlite_rig: Rig) -> None:
    ids = [sqlite_rig.palermo("enqueue", "shop.note", "--args", f'["{n}"]', "-q", "jobs").strip() for n in range(2)]

    assert [row["id"] for row in sqlite_rig.rows("jobs", "jobs")] == ids


def test_P6_without_any_setting_jobs_go_by_the_exchange_palermo_to_the_queue_jobs(
    module_node: Node, tmp_path: Path
) -> None:
    default = parse_url(Settings().url)
    assert default.hosts == (("localhost", 5672),)
    assert (default.username, default.password, default.vhost) == ("guest", "guest", "/")
    bare = Rig(tmp_path, f"amqp://{module_node.host}:{module_node.port}", "palermo", module="shop")
    del bare.environment["PALERMO_EXCHANGE"]

    done = bare.run("enqueue", "shop.note")

    assert done.returncode == 0, done.stderr
    assert "jobs" in done.stderr
    exchanges = module_node.ctl("list_exchanges", "name", "type", "durable").splitlines()
    assert "palermo\tdirect\ttrue" in exchanges
    bindings = module_node.ctl("list_bindings", "source_name", "destination_name", "routing_key").splitlines()
    assert "palermo\tjobs\tjobs" in bindings
    queues = module_node.ctl("list_queues", "name", "durable", "messages_ready", "messages_persistent").splitlines()
    assert "jobs\ttrue\t1\t1" in queues


def test_P12_every_slot_is_a_consumer_with_pid_and_host_in_its_tag(rig: Rig, module_node: Node) -> None:
    worker = rig.worker("-q", "mail", "-c", "2")
    rig.ready(worker)

    me = f"pid:{worker.pid}@{socket.gethostname()}"

    def mine() -> list[list[str]]:
        consumers = module_node.ctl("list_consumers", "queue_name", "consumer_tag", "ack_required", "prefetch_count")
        rows = [line.split("\t") for line in consumers.splitlines()]
        return sorted(row[1:] for row in rows if row[0] == f"{rig.exchange}.mail")

    # One of the slots is enough for a worker to be idle.
    eventually(lambda: mine() == [[f"{me}/worker-{slot}", "true", "1"] for slot in (1, 2)], every=0.2)


def test_P12_a_worker_on_several_queues_shows_its_tag_on_each_while_it_waits(rig: Rig, module_node: Node) -> None:
    worker = rig.worker("-q", "high,mail")
    rig.ready(worker)

    me = f"pid:{worker.pid}@{socket.gethostname()}/worker-1"

    def waits_on() -> set[str]:
        consumers = module_node.ctl("list_consumers", "queue_name", "consumer_tag").splitlines()
        # On one channel a tag is used once, so that the queue's name stands behind it.
        return {queue for queue, tag in (line.split("\t") for line in consumers) if tag.startswith(me)}

    eventually(lambda: waits_on() == {f"{rig.exchange}.high", f"{rig.exchange}.mail"}, every=0.2)


def test_P5_the_broker_itself_counts_one_unacknowledged_job_per_slot(rig: Rig, module_node: Node) -> None:
    for queue in ("one", "two", "three"):
        for number in range(10):
            rig.enqueue("hold", f"{queue}{number}", queue=queue)
    rig.worker("-q", "one,two,three")
    rig.worker("-q", "two")
    eventually(lambda: len(rig.lines()) == 2)

    def counts() -> tuple[int, int]:
        """How many are ready, and how many are not acknowledged."""
        listed = module_node.ctl("list_queues", "name", "messages_ready", "messages_unacknowledged")
        rows = [line.split("\t") for line in listed.splitlines()]
        mine = [row for row in rows if row[0] in {f"{rig.exchange}.{queue}" for queue in ("one", "two", "three")}]
        return sum(int(row[1]) for row in mine), sum(int(row[2]) for row in mine)

    # A worker that asks several queues at once gives back what it does not run.
    eventually(lambda: counts() == (28, 2), every=0.2)


def test_P13_user_password_vhost_and_exchange_are_told_and_the_password_is_never_shown(
    rig: Rig, module_node: Node
) -> None:
    secret = "s3cr3t-p4ss"
    for command in (
        ("add_vhost", "shop"),
        ("add_user", "clerk", secret),
        ("set_permissions", "-p", "shop", "clerk", ".*", ".*", ".*"),
    ):
        module_node.ctl(*command)
    url = url_of(module_node, user="clerk", password=secret, vhost="shop")
    flags = ("--url", url, "--exchange", "counter")

    id = rig.run("enqueue", "shop.hold", "--args", '["x"]', *flags)
    worker = rig.worker("-q", "jobs", *flags)
    rig.await_lines(1)
    titles = "".join(title(pid) for pid in worker.tree())
    listed = rig.run("workers", *flags)
    rig.open_gate()
    rig.await_lines(2)

    assert "counter\tdirect" in module_node.ctl("list_exchanges", "-p", "shop", "name", "type")
    shown = [worker.log, titles, listed.stdout, listed.stderr, id.stdout, id.stderr]
    assert not any(secret in text for text in shown)
    assert "palermo worker" in titles
    assert "clerk" in worker.log


def test_P13_a_worker_is_started_with_host_port_user_vhost_and_a_file_with_the_password(
    rig: Rig, module_node: Node
) -> None:
    secret = "an0ther-p4ss"
    for command in (
        ("add_vhost", "till"),
        ("add_user", "cashier", secret),
        ("set_permissions", "-p", "till", "cashier", ".*", ".*", ".*"),
    ):
        module_node.ctl(*command)
    ((host, port),) = parse_url(rig.url).hosts
    (rig.path / "password").write_text(f"{secret}\n")
    rig.environment["PALERMO_URL"] = "amqp://127.0.0.1:1/"
    flags = ("--host", host, "--port", f"{port}", "--user", "cashier", "--vhost", "till", "--password-file", "password")

    done = rig.run("enqueue", "shop.hold", "--args", '["x"]', "-q", "jobs", *flags)
    worker = rig.worker(*flags)
    rig.await_lines(1)
    titles = "".join(title(pid) for pid in worker.tree())
    listed = rig.run("queues", *flags)
    rig.open_gate()
    rig.await_lines(2)

    assert (done.returncode, listed.returncode) == (0, 0)
    assert not any(secret in text for text in (worker.log, titles, listed.stdout, listed.stderr, done.stderr))
    assert "cashier" in worker.log


def test_P18_everything_is_there_without_the_management_plugin(rig: Rig, module_node: Node) -> None:
    assert "rabbitmq_management" not in module_node.ctl("eval", "rabbit_plugins:active().")
    worker = rig.worker("-q", "jobs,mail")
    rig.ready(worker)
    rig.enqueue("fail", "x")
    rig.enqueue("hold", "x", queue="mail")
    rig.await_lines(1)
    rig.enqueue("note", "waits")

    def counts() -> dict[str, tuple[int, int, int]]:
        return {row["name"]: (row["pending"], row["in_progress"], row["workers"]) for row in rig.rows("queues")}

    # A worker that is slow to answer is in neither listing.
    eventually(lambda: counts() == {"failed": (1, 0, 0), "jobs": (1, 0, 1), "mail": (0, 1, 1)}, every=0.2)
    eventually(lambda: [row["pid"] for row in rig.rows("workers")] == [worker.pid], every=0.2)
    assert [row["args"] for row in rig.rows("jobs", "jobs")] == [["waits"]]


def test_P18_a_killed_worker_is_gone_from_the_list_within_a_second(rig: Rig) -> None:
    workers = (rig.worker(), rig.worker())
    rig.ready(*workers)

    workers[0].kill9()
    watch = Stopwatch()
    eventually(lambda: [row["pid"] for row in rig.workers()] == [workers[1].pid])

    # A second, and another for machines that are busy with tests.
    assert watch.seconds() < 2


REFUSALS: list[tuple[str, dict[str, str], str]] = [
    ("password", {"user": "guest", "password": "wr0ng-s3cret"}, "password"),
    ("user", {"user": "nobody", "password": "wr0ng-s3cret"}, "nobody"),
    ("vhost", {"vhost": "no such vhost"}, "no such vhost"),
    ("permission", {"user": "looker", "password": "wr0ng-s3cret"}, "permission"),
]


@pytest.mark.parametrize(("what", "access", "told"), REFUSALS, ids=[case[0] for case in REFUSALS])
def test_U3_a_broker_that_refuses_says_which_and_never_the_password(
    rig: Rig, module_node: Node, what: str, access: dict[str, str], told: str
) -> None:
    if what == "permission":
        module_node.ctl("add_user", "looker", "wr0ng-s3cret")
        module_node.ctl("set_permissions", "looker", "^$", "^$", "^$")
    url = url_of(module_node, **access)

    enqueued = rig.run("enqueue", "shop.note", "-q", "jobs", "--url", url)
    listed = rig.run("queues", "--url", url)
    worker = rig.worker(PALERMO_URL=url)
    if what == "permission":  # it is let in, and somebody may grant the rest
        eventually(lambda: told in worker.log)
        assert worker.alive
    else:
        assert worker.wait() == 3
        assert [line.split()[1:4] for line in worker.log.splitlines()[:-1]] == [["INFO", "worker", "started"]]
        assert told in worker.log.splitlines()[-1]
        assert "BrokerRefused" in worker.log.splitlines()[-1]

    for done in (enqueued, listed):
        assert done.returncode == 3, done.stderr
        (line,) = done.stderr.splitlines()
        assert "BrokerRefused" in line
        assert told in line
    assert not any("wr0ng" in text or "Traceback" in text for text in (worker.log, enqueued.stderr, listed.stderr))


def test_T2_a_worker_on_a_groups_queue_alone_shares_it_with_another_programs_consumer(rabbitmq_rig: Rig) -> None:
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


def test_U3_a_worker_that_has_worked_outlasts_a_change_of_its_password(rig: Rig, module_node: Node) -> None:
    module_node.ctl("add_user", "changing", "first")
    module_node.ctl("set_permissions", "changing", ".*", ".*", ".*")
    worker = rig.worker(PALERMO_URL=url_of(module_node, user="changing", password="first"))
    eventually(lambda: "connected broker" in worker.log)

    module_node.ctl("change_password", "changing", "second")
    module_node.ctl("close_all_user_connections", "changing", "the password has changed")

    eventually(lambda: "broker unavailable" in worker.log)
    assert worker.alive
    module_node.ctl("change_password", "changing", "first")
    eventually(lambda: worker.log.count("connected broker") >= 2)
