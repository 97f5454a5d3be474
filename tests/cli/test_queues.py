import json

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

    (row,) = json.loads(palermo("jobs", "slow", "--json").stdout)
    assert result.stdout == row["id"] + "\n"
    assert (row["job"], row["args"], row["kwargs"]) == ("shop.resize", ["x.png"], {"width": 3})
    assert row["preview"] == "'x.png', width=3"
    assert row["created_at"].endswith("Z")


def test_enqueue_without_queue_and_code_goes_to_jobs(palermo: Palermo) -> None:
    result = palermo("enqueue", "shop.resize")

    assert "'jobs'" in result.stderr
    assert len(result.stdout.split()) == 1
    assert len(json.loads(palermo("jobs", "jobs", "--json").stdout)) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--args", "{}"],
        ["--args", "[1"],
        ["--args", "[NaN]"],
        ["--args", "1"],
        ["--args", "null"],
        ["--args", "[" * 100_000],
        ["--args", f"[{'9' * 5_000}]"],
        ["--kwargs", "[]"],
        ["--kwargs", '{"a"}'],
        ["-q", "failed"],
        ["-q", "amq.x"],
        ["-q", ""],
        ["-q", " mail"],
        ["-q", "x" * 128],
        ["--id", ""],
        ["--id", "x" * 256],
        ["--in", "soon"],
        ["--in", "-5m"],
        ["--at", "tomorrow"],
        ["--at", "2026-12-01T09:00"],
        ["--in", "5m", "--at", "2126-12-01T09:00Z"],
        ["--url", "nonsense"],
        ["--url", "sqlite:///:memory:"],
        ["--url", "gopher://localhost"],
        ["--url", "amqp://localhost:port/"],
        ["--exchange", "a.b"],
        ["--limit", "0"],
        ["--limit", "many"],
        ["--rate", "often"],
        ["--unique", "until_never"],
        ["--unique-key", "eu"],
        ["--on-duplicate", "ignore"],
        ["--dedupe", "soon"],
        ["--debounce", "5s", "--unique", "until_done"],
        ["--retries", "-1"],
        ["--share", "0"],
        ["--tenant", " a"],
        ["--timeout", "0"],
        ["--frob", "1"],
    ],
)
def test_wrong_usage_is_one_line_and_ends_in_2(palermo: Palermo, arguments: list[str]) -> None:
    result = palermo("enqueue", "shop.resize", *arguments, code=2)

    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_enqueue_takes_the_options_that_options_takes(palermo: Palermo) -> None:
    options = ("--tenant", "acme", "--share", "2", "--priority", "3", "--unique", "until_done", "--unique-key", "eu")
    more = ("--on-duplicate", "return", "--dedupe", "1m", "--limit", "2", "--limit-key", "k", "--rate", "5/s")
    runs = ("--retries", "4", "--timeout", "30s", "--lock-for", "5m", "--expires", "1h", "--keep-result")
    palermo("enqueue", "shop.sync", "-q", "slow", "--id", "mine", *options, *more, *runs, "--serializer", "json")

    [row] = json.loads(palermo("jobs", "slow", "--json").stdout)
    [key] = json.loads(palermo("unique", "list", "--json").stdout)
    assert (row["id"], row["tenant"], row["priority"]) == ("mine", "acme", 3)
    assert (key["key"], key["id"], key["unique"]) == ("shop.sync:eu", "mine", "until_done")


def test_an_option_of_the_command_is_missing_for_no_option_of_options() -> None:
    taken = {parameter.name for parameter in enqueue.params}

    assert {*ENQUEUE_OPTIONS} - {"delay", "run_at"} <= taken


def test_a_waiting_id_is_printed_again_and_not_enqueued_twice(palermo: Palermo) -> None:
    again = ("enqueue", "shop.sync", "-q", "slow", "--id", "order-7", "--unique", "until_done")
    first, second = palermo(*again), palermo(*again)

    assert (first.stdout, second.stdout) == ("order-7\n", "order-7\n")
    assert "waiting" in second.stderr
    assert len(json.loads(palermo("jobs", "slow", "--json").stdout)) == 1
    assert "order-7" in palermo(*again, "--on-duplicate", "raise", code=1).stderr

    elsewhere = palermo("enqueue", "shop.sync", "--id", "order-7", "--unique", "until_done", "--json")
    assert json.loads(elsewhere.stdout) == {
        "id": "order-7",
        "job": "shop.sync",
        "queue": "jobs",
        "duplicate": "waiting",
        "replaced": False,
        "instead_of": None,
    }
    replacing = (
        "enqueue",
        "shop.sync",
        "--args",
        "[1]",
        "--id",
        "order-7",
        "--unique",
        "until_done",
        "--on-duplicate",
        "replace",
    )
    assert json.loads(palermo(*replacing, "--json").stdout)["replaced"]
    assert "it went to queue" not in elsewhere.stderr


def test_a_job_that_does_not_run_since_a_later_one_does_is_named(palermo: Palermo) -> None:
    index = ("enqueue", "shop.index", "-q", "slow", "--unique-key", "home", "--debounce", "1h")
    first, second, third = palermo(*index), palermo(*index), palermo(*index, "--json")

    assert f"job {first.stdout.strip()} waited for its turn" in second.stderr
    assert json.loads(third.stdout)["instead_of"] == second.stdout.strip()
    same = (*index, "--id", "home-1")
    assert "an earlier enqueue" not in palermo(*same).stderr
    assert "an earlier enqueue of home-1 waited for its turn" in palermo(*same).stderr


def test_a_job_without_its_code_is_never_silently_plain(palermo: Palermo) -> None:
    assert "nothing is known of the code of" in palermo("enqueue", "shop.sync", "-q", "slow").stderr
    assert palermo("enqueue", "shop.sync", "-q", "slow", "--unique", "5m").stderr == (
        "no worker serves queue 'slow'. The job waits until a worker serves it.\n"
    )


def test_a_plain_job_that_a_worker_takes_is_enqueued_without_a_note(palermo: Palermo, client: Client) -> None:
    async def with_worker(broker: Broker) -> None:
        await consume(broker, "slow")

    client.run(with_worker)

    assert palermo("enqueue", "shop.sync", "-q", "slow").stderr == ""


def test_enqueue_to_a_mistyped_queue_says_that_no_worker_serves_it(palermo: Palermo, client: Client) -> None:
    async def with_worker(broker: Broker) -> None:
        await consume(broker, "jobs")

    client.run(with_worker)

    first = palermo("enqueue", "shop.sync", "-q", "jbos").stderr.splitlines()[0]

    assert first == "no worker serves queue 'jbos'. Did you mean 'jobs'? The job waits until a worker serves it."


def test_purge_and_delete(palermo: Palermo, client: Client) -> None:
    publish(client, message("1"), message("2"), message("3", queue="slow"))

    assert palermo("purge", "mail", "--yes").stdout == "removed 2 jobs from queue mail.\n"
    assert json.loads(palermo("purge", "mail", "--yes", "--json").stdout) == [{"queue": "mail", "removed": 0}]
    assert palermo("delete", "slow", "--yes").stdout == "removed queue slow with 1 job.\n"
    assert [row["name"] for row in json.loads(palermo("queues", "--json").stdout)] == ["failed", "mail"]


def test_purge_all_clears_every_queue_but_not_the_failed_jobs(palermo: Palermo, client: Client) -> None:
    failing = message("4", queue="failed", failure=FAILURE)
    publish(client, message("1"), message("2"), message("3", queue="slow"), failing)

    assert "--yes" in palermo("purge", "--all", code=2).stderr
    assert palermo("purge", "--all", "--yes").stdout == (
        "removed 2 jobs from queue mail.\nremoved 1 job from queue slow.\n"
    )
    assert palermo("purge", "--all", "--yes").stdout == "no job waits in any queue.\n"
    publish(client, message("5"))
    assert json.loads(palermo("purge", "--all", "--yes", "--json").stdout) == [{"queue": "mail", "removed": 1}]
    assert len(json.loads(palermo("failed", "list", "--json").stdout)) == 1


@pytest.mark.parametrize("arguments", [[], ["mail", "--all"], ["--all", "--tenant", "acme"]])
def test_purge_needs_a_queue_or_all(palermo: Palermo, arguments: list[str]) -> None:
    assert len(palermo("purge", *arguments, "--yes", code=2).stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [["jobs"], ["purge", "--yes"], ["delete", "--yes"]])
@pytest.mark.parametrize("name", ["", "amq.x", "~x", " a", "x" * 128])
def test_a_name_that_no_queue_has_ends_in_2(palermo: Palermo, command: list[str], name: str) -> None:
    assert "QueueNameInvalid" in palermo(*command, name, code=2).stderr


def test_dequeue_by_arguments(palermo: Palermo, client: Client) -> None:
    publish(client, message("1", "a"), message("2", "b"))

    result = palermo("dequeue", "shop.send", "--args", '["a"]', "-q", "mail", "--yes")

    assert result.stdout == "removed 1 job from queue mail.\n"
    assert [row["id"] for row in json.loads(palermo("jobs", "mail", "--json").stdout)] == ["2"]


def test_replaced_arguments_are_told_shown_and_matched_by_dequeue(palermo: Palermo) -> None:
    again = ("enqueue", "shop.send", "-q", "mail", "--id", "a", "--unique", "until_done", "--args")
    remove = ("dequeue", "shop.send", "-q", "mail", "--yes", "--args")
    palermo(*again, '["old"]')

    second = palermo(*again, '["new"]', "--on-duplicate", "replace")

    assert second.stdout == "a\n"
    assert "is waiting: its arguments were replaced by these." in second.stderr
    assert [row["args"] for row in json.loads(palermo("jobs", "mail", "--json").stdout)] == [["new"]]
    palermo(*remove, '["old"]', code=4)
    assert palermo(*remove, '["new"]').stdout == "removed 1 job from queue mail.\n"
    assert palermo(*again, '["third"]').stderr.count("has the key") == 0


def test_dequeue_says_what_is_scheduled(palermo: Palermo, client: Client) -> None:
    publish(client, message("1", "a"))
    for text in ("a", "b"):
        palermo("enqueue", "shop.send", "-q", "mail", "--args", f'["{text}"]', "--in", "1h")

    result = palermo("dequeue", "shop.send", "--args", '["a"]', "-q", "mail", "--yes")
    again = palermo("dequeue", "shop.send", "-q", "mail", "--yes", code=4)

    assert "1 such job scheduled" in result.stderr
    assert "`palermo scheduled cancel --all --job shop.send --args JSON`" in result.stderr
    assert "2 such jobs scheduled" in again.stderr
