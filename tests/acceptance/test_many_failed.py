"""Listing and requeueing many failed jobs on RabbitMQ: 50,000 with `make endurance`."""

import subprocess
from collections.abc import Callable, Iterator

import pika
import pytest

from palermo.brokers.rabbitmq.amqp.messages import to_properties
from palermo.core.address import parse_url
from palermo.core.lifecycle import fail
from tests.harness.rig import COMMAND, Rig
from tests.helpers import Stopwatch, eventually
from tests.inspector.jobs import failure, message, publish_failed
from tests.rabbitmq_node import Node, url_of
from tests.scale import scaled
from tests.tcp_proxy import TcpProxy

JOBS = scaled(6_000, 50_000)

#: One kill doubles at most the jobs of the page that was being requeued.
FEW = 1_000

Say = Callable[[str], None]


@pytest.fixture(scope="module")
def rig(module_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """A queue `failed` with JOBS jobs, of which "0" is the oldest. The tests below run in this order."""
    with Rig(tmp_path_factory.mktemp("many"), url_of(module_node), "palermo", module="shop") as rig:
        publish_failed(rig.client, (message("0"), failure()))
        with pika.BlockingConnection(pika.URLParameters(rig.url)) as connection:
            channel = connection.channel()
            for number in range(1, JOBS):
                # With the headers a worker gives them, and published faster than one by one.
                made = fail(message(str(number)), failure(), worker="pid:1@test/worker-1")
                channel.basic_publish("palermo", "failed", made.body, to_properties(made))
        eventually(lambda: rig.pending("failed") == JOBS)
        yield rig


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n{text}", end="")

    return say


def test_of_many_failed_jobs_the_first_page_and_one_requeue_come_soon(rig: Rig, say: Say) -> None:
    watch = Stopwatch()
    page = rig.rows("failed", "list")
    listed = watch.seconds()
    middle = str(JOBS // 2)
    rig.palermo("failed", "requeue", middle)
    requeued = watch.seconds() - listed

    say(f"of {JOBS:,} failed jobs: first page {listed:.2f} s (goal 1 s), requeue of one {requeued:.2f} s (goal 10 s)")
    assert [row["id"] for row in page] == [str(number) for number in range(100)]
    assert max(listed, requeued) < 20
    assert [row["id"] for row in rig.inspector.jobs("mail")] == [middle]
    left = [row["id"] for row in rig.inspector.failed(limit=JOBS)]
    assert left == [str(number) for number in range(JOBS) if number != JOBS // 2]


def test_a_requeue_of_many_killed_half_way_and_run_again_loses_none(rig: Rig, say: Say) -> None:
    command = [COMMAND, "failed", "requeue", "--all", "--yes"]
    host, port = parse_url(rig.url).hosts[0]
    with TcpProxy(host, port) as proxy:
        # So slow that it is not done before it is killed, even if the test stands still for some seconds.
        proxy.delay = 0.1
        environment = {**rig.environment, "PALERMO_URL": rig.url.replace(f"@{host}:{port}", f"@127.0.0.1:{proxy.port}")}
        with subprocess.Popen(command, env=environment, cwd=rig.path, stdout=subprocess.DEVNULL) as requeue:
            eventually(lambda: rig.pending("mail") > JOBS // 3, every=0.005)
            requeue.kill()

    eventually(lambda: rig.pending("mail") + rig.pending("failed") >= JOBS)
    left = rig.pending("failed")
    rig.palermo("failed", "requeue", "--all", "--yes")

    twice = rig.pending("mail") - JOBS
    say(f"killed with {left:,} jobs not requeued; {twice} are there twice\n")
    assert left > 0, "it was not killed half-way"
    assert rig.pending("failed") == 0
    assert {row["id"] for row in rig.inspector.jobs("mail", limit=2 * JOBS)} == {str(number) for number in range(JOBS)}
    assert 0 <= twice <= FEW
