"""`palermo enqueue`, `dequeue`, `purge`, `delete` and `tenants`."""

import pytest

from palermo.cli.enqueue import enqueue
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.jobs.options import ENQUEUE_OPTIONS
from tests.cli.conftest import Palermo
from tests.contract.tools import FAILURE, consume
from tests.inspector.jobs import message, publish


def test_enqueue_prints_the_id_alone(palermo: Palermo) -> None:
    result = palermo("enqueue", "shop.resize", "--args", '["x.png"]', "--kwargs", '{"width": 3}', "-q", "slow")

    (row,) = palermo.rows("jobs", "slow")
    assert result.stdout == row["id"] + "\n"
    assert (row["job"], row["args"], row["kwargs"]) == ("shop.resize", ["x.png"], {"width": 3})
    assert row["preview"] == "'x.png', width=3"
    assert row["created_at"].endswith("Z")


@pytest.mark.parametrize("argument", ["[" * 100_000, f"[{'9' * 5_000}]"])
def test_arguments_that_python_does_not_read_are_wrong_usage(palermo: Palermo, argument: str) -> None:
    assert len(palermo("enqueue", "x", "--args", argument, code=2).stderr.splitlines()) == 1


def test_enqueue_takes_the_options_that_options_takes(palermo: Palermo) -> None:
    options = ("--tenant", "acme", "--share", "2", "--priority", "3", "--unique", "until_done", "--unique-key", "eu")
    more = ("--on-duplicate", "return", "--dedupe", "1m", "--limit", "2", "--limit-key", "k", "--rate", "5/s")
    runs = ("--retries", "4", "--timeout", "30s", "--lock-for", "5m", "--expires", "1h", "--keep-result")
    palermo("enqueue", "shop.sync", "-q", "slow", "--id", "mine", *options, *more, *runs, "--serializer", "json")
    taken = {parameter.name for parameter in enqueue.params}

    [row] = palermo.rows("jobs", "slow")
    [key] = palermo.rows("unique", "list")
    assert (row["id"], row["tenant"], row["priority"]) == ("mine", "acme", 3)
    assert (key["key"], key["id"], key["unique"]) == ("shop.sync:eu", "mine", "until_done")
    assert {*ENQUEUE_OPTIONS} - {"delay", "run_at"} <= taken


def test_a_job_with_a_higher_priority_is_listed_first(palermo: Palermo) -> None:
    for priority in ("0", "9"):
        palermo("enqueue", "shop.send", "-q", "mail", "--priority", priority)

    assert [row["priority"] for row in palermo.rows("jobs", "mail")] == [9, 0]


def test_a_waiting_id_is_printed_again_and_not_enqueued_twice(palermo: Palermo) -> None:
    again = ("enqueue", "shop.sync", "--id", "order-7", "--unique", "until_done")
    first, second = palermo(*again, "-q", "slow"), palermo(*again, "-q", "slow")

    assert (first.stdout, second.stdout) == ("order-7\n", "order-7\n")
    assert palermo.ids("jobs", "slow") == ["order-7"]
    elsewhere = palermo(*again, "--json")
    assert "it went to queue" not in elsewhere.stderr
    assert palermo.rows(*again) == {
        "id": "order-7",
        "job": "shop.sync",
        "queue": "jobs",
        "duplicate": "waiting",
        "replaced": False,
        "instead_of": None,
    }


def test_replaced_arguments_are_told_shown_and_matched_by_dequeue(palermo: Palermo) -> None:
    again = ("enqueue", "shop.send", "-q", "mail", "--id", "a", "--unique", "until_done", "--args")
    remove = ("dequeue", "shop.send", "-q", "mail", "--yes", "--args")
    palermo(*again, '["old"]')

    assert palermo.rows(*again, '["new"]', "--on-duplicate", "replace")["replaced"]

    assert [row["args"] for row in palermo.rows("jobs", "mail")] == [["new"]]
    palermo(*remove, '["old"]', code=4)
    palermo(*remove, '["new"]')
    assert palermo(*again, '["third"]').stderr.count("has the key") == 0


def test_a_job_that_does_not_run_since_a_later_one_does_is_named(palermo: Palermo) -> None:
    index = ("enqueue", "shop.index", "-q", "slow", "--unique-key", "home", "--debounce", "1h")
    first, second = palermo(*index), palermo(*index)

    assert f"job {first.stdout.strip()} waited for its turn" in second.stderr
    assert palermo.rows(*index)["instead_of"] == second.stdout.strip()
    same = (*index, "--id", "home-1")
    assert "an earlier enqueue" not in palermo(*same).stderr
    assert "an earlier enqueue of home-1 waited for its turn" in palermo(*same).stderr


def test_enqueue_warns_of_a_queue_that_no_worker_serves(palermo: Palermo, client: Client) -> None:
    async def with_worker(broker: Broker) -> None:
        await consume(broker, "slow")

    client.run(with_worker)

    assert palermo("enqueue", "shop.sync", "-q", "slow").stderr == ""
    assert "no worker serves queue 'solw'. Did you mean 'slow'?" in palermo("enqueue", "a", "-q", "solw").stderr


@pytest.mark.parametrize("name", ["*", "a,b", "!low", "=x"])
def test_a_queue_named_as_a_pattern_can_be_read_and_deleted(palermo: Palermo, client: Client, name: str) -> None:
    publish(client, message("1", queue=name))

    assert palermo.ids("jobs", name) == ["1"]
    palermo("delete", name, "--yes")
    assert [row["name"] for row in palermo.rows("queues")] == ["failed"]


def test_purge_empties_a_queue_and_delete_removes_it(palermo: Palermo, client: Client) -> None:
    publish(client, message("1"), message("2"), message("3", queue="slow"))

    assert palermo.rows("purge", "mail", "--yes") == [{"queue": "mail", "removed": 2}]
    palermo("delete", "slow", "--yes")
    assert palermo.rows("jobs", "mail") == []
    assert [row["name"] for row in palermo.rows("queues")] == ["failed", "mail"]


def test_purge_all_clears_every_queue_but_not_the_failed_jobs(palermo: Palermo, client: Client) -> None:
    failing = message("4", queue="failed", failure=FAILURE)
    publish(client, message("1"), message("2"), message("3", queue="slow"), failing)

    removed = palermo.rows("purge", "--all", "--yes")

    assert removed == [{"queue": "mail", "removed": 2}, {"queue": "slow", "removed": 1}]
    assert palermo("purge", "--all", "--yes").stdout == "no job waits in any queue.\n"
    assert palermo.ids("failed", "list") == ["4"]


def test_dequeue_by_arguments_leaves_the_rest_and_tells_of_scheduled_ones(palermo: Palermo, client: Client) -> None:
    publish(client, message("1", "a"), message("2", "b"))
    for text in ("a", "b"):
        palermo("enqueue", "shop.send", "-q", "mail", "--args", f'["{text}"]', "--in", "1h")

    result = palermo("dequeue", "shop.send", "--args", '["a"]', "-q", "mail", "--yes")

    assert result.stdout == "removed 1 job from queue mail.\n"
    assert "1 such job scheduled" in result.stderr
    assert "`palermo scheduled cancel --all --job shop.send --args JSON`" in result.stderr
    assert palermo.ids("jobs", "mail") == ["2"]


def test_the_tenants_of_a_queue_are_listed_and_cleared(palermo: Palermo, client: Client) -> None:
    for tenant, count in (("acme", 3), ("zebra", 1)):
        for number in range(count):
            client.enqueue("shop.resize", [number], queue="images", tenant=tenant, share=2)

    listed = palermo.rows("tenants", "images")

    assert listed == [
        {"tenant": "acme", "queue": "images", "pending": 3, "share": 2.0},
        {"tenant": "zebra", "queue": "images", "pending": 1, "share": 2.0},
    ]
    assert palermo.rows("clients", "images") == listed
    assert palermo.rows("tenants", "images", "--tenant", "zebra") == listed[1:]
    assert palermo.rows("tenants", "images", "--tenant", "nobody") == []
    palermo("purge", "images", "--client", "acme", "--yes")
    assert palermo.rows("tenants", "images") == listed[1:]
    assert "acme" in palermo("purge", "images", "--client", "acme", "--yes", code=4).stderr
    assert [row["tenant"] for row in palermo.rows("jobs", "images")] == ["zebra"]
