"""`palermo enqueue`, `dequeue`, `purge`, `delete` and `tenants`."""

from palermo.cli.enqueue import enqueue
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.jobs.options import ENQUEUE_OPTIONS
from tests.cli.conftest import Palermo
from tests.contract.workers import consume
from tests.inspector.jobs import message, publish


def test_enqueue_takes_the_options_that_options_takes(palermo: Palermo) -> None:
    options = ("--tenant", "acme", "--share", "2", "--priority", "3", "--unique", "until_done", "--unique-key", "eu")
    more = ("--on-duplicate", "return", "--dedupe", "1m", "--limit", "2", "--limit-key", "k", "--rate", "5/s")
    runs = ("--retries", "4", "--timeout", "30s", "--rerun-after", "5m", "--expires", "1h", "--keep-result")
    palermo("enqueue", "shop.sync", "-q", "slow", "--id", "mine", *options, *more, *runs, "--serializer", "json")
    taken = {parameter.name for parameter in enqueue.params}

    [row] = palermo.rows("jobs", "slow")
    [key] = palermo.rows("unique", "list")
    assert (row["id"], row["tenant"], row["priority"]) == ("mine", "acme", 3)
    assert (key["key"], key["id"], key["unique"]) == ("shop.sync:eu", "mine", "until_done")
    assert {*ENQUEUE_OPTIONS} - {"delay", "run_at"} <= taken
    for unread in ("[" * 100_000, f"[{'9' * 5_000}]"):
        assert len(palermo("enqueue", "x", "--args", unread, code=2).stderr.splitlines()) == 1


def test_replaced_arguments_are_told_shown_and_matched_by_dequeue(palermo: Palermo) -> None:
    again = ("enqueue", "shop.send", "-q", "mail", "--id", "a", "--unique", "until_done", "--args")
    remove = ("dequeue", "shop.send", "-q", "mail", "--yes", "--args")
    palermo(*again, '["old"]')

    assert palermo.rows(*again, '["new"]', "--on-duplicate", "replace")["replaced"]

    assert [row["args"] for row in palermo.rows("jobs", "mail")] == [["new"]]
    palermo(*remove, '["old"]', code=4)
    palermo(*remove, '["new"]')
    assert palermo(*again, '["third"]').stderr.count("has the key") == 0


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


def test_dequeue_by_arguments_leaves_the_rest_and_tells_of_scheduled_ones(palermo: Palermo, client: Client) -> None:
    publish(client, message("1", "a"), message("2", "b"))
    for text in ("a", "b"):
        palermo("enqueue", "shop.send", "-q", "mail", "--args", f'["{text}"]', "--in", "1h")

    result = palermo("dequeue", "shop.send", "--args", '["a"]', "-q", "mail", "--yes")

    assert result.stdout == "removed 1 job from queue mail.\n"
    assert "1 such job scheduled" in result.stderr
    assert "`palermo scheduled cancel --all --job '=shop.send' --args JSON`" in result.stderr
    assert palermo.ids("jobs", "mail") == ["2"]
