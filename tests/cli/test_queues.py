"""`palermo enqueue`, `dequeue`, `purge`, `delete` and `tenants`."""

from palermo.cli.enqueue import enqueue
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.jobs.options import ENQUEUE_OPTIONS
from tests.cli.conftest import Palermo
from tests.contract.workers import consume
from tests.inspector.jobs import message, publish


def test_enqueue_has_the_options_that_options_takes(palermo: Palermo) -> None:
    taken = {parameter.name for parameter in enqueue.params}

    assert {*ENQUEUE_OPTIONS} - {"delay", "run_at"} <= taken
    for unread in ("[" * 100_000, f"[{'9' * 5_000}]"):
        assert len(palermo("enqueue", "x", "--args", unread, code=2).stderr.splitlines()) == 1


def test_enqueue_warns_of_a_queue_that_no_worker_serves(palermo: Palermo, client: Client) -> None:
    async def with_worker(broker: Broker) -> None:
        await consume(broker, "slow")

    client.run(with_worker)

    assert palermo("enqueue", "shop.sync", "-q", "slow").stderr == ""
    assert "no worker serves queue 'solw'. Did you mean 'slow'?" in palermo("enqueue", "a", "-q", "solw").stderr


def test_a_queue_named_as_a_pattern_can_be_read_and_deleted(palermo: Palermo, client: Client) -> None:
    for name in ("*", "a,b", "!low", "=x"):
        publish(client, message("1", queue=name))

        assert palermo.ids("jobs", name) == ["1"]
        palermo("delete", name, "--yes")
    assert [row["name"] for row in palermo.rows("queues")] == ["failed"]
