import json

import pytest

from palermo.client.client import Client
from tests.cli.conftest import Palermo
from tests.inspector.jobs import message, publish


def test_enqueue_prints_the_id_alone(palermo: Palermo) -> None:
    result = palermo("enqueue", "shop.resize", "--args", '["x.png"]', "--kwargs", '{"width": 3}', "-q", "slow")

    (row,) = json.loads(palermo("jobs", "slow", "--json").stdout)
    assert result.stdout == row["id"] + "\n"
    assert result.stderr == ""
    assert (row["job"], row["args"], row["kwargs"]) == ("shop.resize", ["x.png"], {"width": 3})
    assert row["preview"] == "'x.png', width=3"
    assert row["created_at"].endswith("Z")


def test_enqueue_with_an_id_of_ones_own(palermo: Palermo) -> None:
    assert palermo("enqueue", "shop.resize", "-q", "slow", "--id", "mine").stdout == "mine\n"


def test_enqueue_without_a_queue_and_without_the_code_goes_to_jobs_and_says_so(palermo: Palermo) -> None:
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
        ["--url", "redis://localhost"],
        ["--url", "amqp://localhost:port/"],
        ["--exchange", "a.b"],
        ["--limit", "1"],
    ],
)
def test_wrong_usage_is_one_line_and_ends_in_2(palermo: Palermo, arguments: list[str]) -> None:
    result = palermo("enqueue", "shop.resize", *arguments, code=2)

    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_arguments_that_cannot_be_written_name_the_culprit(palermo: Palermo) -> None:
    result = palermo("enqueue", "shop.resize", "--args", '[1, {"a": "\\ud800"}]', code=1)

    assert 'args[1]["a"]' in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_purge_and_delete(palermo: Palermo, client: Client) -> None:
    publish(client, message("1"), message("2"), message("3", queue="slow"))

    assert palermo("purge", "mail", "--yes").stdout == "removed 2 jobs from queue mail.\n"
    assert palermo("delete", "slow", "--yes").stdout == "removed queue slow with 1 job.\n"
    assert [row["name"] for row in json.loads(palermo("queues", "--json").stdout)] == ["failed", "mail"]


@pytest.mark.parametrize("command", [["jobs"], ["purge", "--yes"], ["delete", "--yes"]])
def test_a_queue_that_is_not_there_ends_in_4(palermo: Palermo, command: list[str]) -> None:
    assert "nowhere" in palermo(*command, "nowhere", code=4).stderr


@pytest.mark.parametrize("command", [["jobs"], ["purge", "--yes"], ["delete", "--yes"]])
@pytest.mark.parametrize("name", ["", "amq.x", "~x", " a", "x" * 128])
def test_a_name_that_no_queue_has_ends_in_2(palermo: Palermo, command: list[str], name: str) -> None:
    assert "QueueNameInvalid" in palermo(*command, name, code=2).stderr


def test_r11_dequeue_by_arguments(palermo: Palermo, client: Client) -> None:
    publish(client, message("1", "a"), message("2", "b"))

    result = palermo("dequeue", "shop.send", "--args", '["a"]', "-q", "mail", "--yes")

    assert result.stdout == "removed 1 job from queue mail.\n"
    assert [row["id"] for row in json.loads(palermo("jobs", "mail", "--json").stdout)] == ["2"]


def test_R12_dequeue_says_what_is_scheduled(palermo: Palermo, client: Client) -> None:
    publish(client, message("1", "a"))
    for text in ("a", "b"):
        palermo("enqueue", "shop.send", "-q", "mail", "--args", f'["{text}"]', "--in", "1h")

    result = palermo("dequeue", "shop.send", "--args", '["a"]', "-q", "mail", "--yes")
    again = palermo("dequeue", "shop.send", "-q", "mail", "--yes", code=4)

    assert "1 such job scheduled" in result.stderr
    assert "`palermo scheduled cancel --all --job shop.send --args JSON`" in result.stderr
    assert "2 such jobs scheduled" in again.stderr


def test_r11_dequeue_of_nothing_ends_in_4(palermo: Palermo, client: Client) -> None:
    publish(client, message("1", "a"))

    palermo("dequeue", "shop.send", "--args", '["z"]', "-q", "mail", "--yes", code=4)
