import json
import sys

import pytest
from msgspec.structs import replace

from palermo.cli import output
from palermo.cli.failed import _telling_how_far
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.core.failure import Attempt
from palermo.errors import BrokerUnavailable
from palermo.inspector.judges import TakenJob
from tests.cli.conftest import Palermo
from tests.contract.tools import consume
from tests.inspector.jobs import failure, message, publish_failed


@pytest.fixture
def three(client: Client) -> None:
    publish_failed(
        client,
        (message("1", "a"), failure()),
        (message("2", "b", queue="slow"), failure("KeyError")),
        (message("3", "c"), failure()),
    )


def ids(palermo: Palermo, queue: str) -> list[str]:
    return [row["id"] for row in json.loads(palermo("jobs", queue, "--json").stdout)]


@pytest.mark.usefixtures("three")
def test_requeue_all(palermo: Palermo) -> None:
    rows = json.loads(palermo("failed", "requeue", "--all", "--yes", "--json").stdout)

    assert rows == [
        {"id": "1", "job": "shop.send", "queue": "mail"},
        {"id": "2", "job": "shop.send", "queue": "slow"},
        {"id": "3", "job": "shop.send", "queue": "mail"},
    ]
    assert ids(palermo, "failed") == []


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("flag", ["--to-queue", "--queue-to"])
def test_requeue_with_other_arguments_to_another_queue(palermo: Palermo, flag: str) -> None:
    palermo("failed", "requeue", "1", "--args", '["z"]', "--kwargs", '{"n": 1}', flag, "new", "--yes")

    (row,) = json.loads(palermo("jobs", "new", "--json").stdout)
    assert (row["args"], row["kwargs"], row["retries"], row["preview"]) == (["z"], {"n": 1}, 1, "'z', n=1")


@pytest.mark.usefixtures("three")
def test_requeue_to_a_mistyped_queue_asks_and_without_a_yes_does_nothing(
    palermo: Palermo, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(broker: Broker) -> None:
        await consume(broker, "legacy")

    client.run(serve)
    question = "no worker serves queue 'legcy'. Did you mean 'legacy'? Requeue 1 failed job to queue 'legcy'?"

    assert question in palermo("failed", "requeue", "1", "--to-queue", "legcy", code=2).stderr
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is not sys.stdout)
    assert question in palermo("failed", "requeue", "1", "--to-queue", "legcy", code=1, stdin="n\n").stderr
    assert ids(palermo, "failed") == ["1", "2", "3"]
    assert "legcy" not in palermo("queues", "--json").stdout

    assert palermo("failed", "requeue", "1", "--to-queue", "legacy").stdout == "requeued 1 job.\n"


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("action", ["discard", "requeue"])
@pytest.mark.parametrize("option", ["--text", "--queue", "--error", "--job", "--tenant", "--worker"])
def test_a_filter_whose_value_is_blank_chooses_nothing(palermo: Palermo, action: str, option: str) -> None:
    refused = palermo("failed", action, "--all", option, "", "-y", code=2)

    assert refused.stderr == f"palermo: OptionInvalid: {option[2:]} is blank: give it a value, or leave it out.\n"
    assert ids(palermo, "failed") == ["1", "2", "3"]


@pytest.mark.usefixtures("three")
def test_a_page_past_the_end_says_how_many_pages_there_are(palermo: Palermo) -> None:
    beyond = ["failed", "list", "--limit", "2", "--page"]

    assert palermo(*beyond, "3").stderr == "no more failed jobs: 3 in all, on 2 pages.\n"
    filtered = "no more failed jobs with error='ValueError': 2 in all, on 1 page.\n"
    assert palermo(*beyond, "2", "--error", "ValueError").stderr == filtered
    assert palermo("failed", "list", "--error", "Other").stderr == "no failed jobs with error='Other'.\n"


def test_a_group_of_failed_jobs_is_addressed_by_its_key(palermo: Palermo, client: Client) -> None:
    publish_failed(
        client,
        *((message(f"k{n}"), failure("KeyError", text)) for n, text in enumerate(("'a'", "'b'"))),
        *((message(f"v{n}", queue=queue), failure()) for n, queue in enumerate(("slow", "mail", "mail"))),
    )
    shown = palermo("failed", "groups").stdout.splitlines()
    keys = {row["error"]: row["fingerprint"] for row in json.loads(palermo("failed", "groups", "--json").stdout)}

    listed = json.loads(palermo("failed", "list", "--json", "--group", keys["KeyError"]).stdout)
    unknown = palermo("failed", "requeue", "--all", "--yes", "--group", "0" * 12, code=4).stderr
    requeued = palermo("failed", "requeue", "--all", "--yes", "--group", keys["ValueError"]).stdout
    discarded = palermo("failed", "discard", "--all", "--group", keys["KeyError"], "--yes").stdout

    assert [line.split()[:3] for line in shown[1:]] == [
        ["3", keys["ValueError"], "shop.send"],
        ["2", keys["KeyError"], "shop.send"],
    ]
    assert [row["id"] for row in listed] == ["k0", "k1"]
    assert unknown == "palermo: NotFound: no failed job matches group='000000000000'.\n"
    assert (requeued, discarded) == ("requeued 3 jobs.\n", "discarded 2 jobs.\n")
    assert (ids(palermo, "slow"), ids(palermo, "mail")) == (["v0"], ["v1", "v2"])


@pytest.mark.usefixtures("three")
def test_discard_by_id_and_all(palermo: Palermo) -> None:
    assert palermo("failed", "discard", "1", "--yes").stdout == "discarded 1 job.\n"
    assert ids(palermo, "failed") == ["2", "3"]

    palermo("failed", "discard", "--all", "--error", "KeyError", "--yes")
    assert ids(palermo, "failed") == ["3"]

    assert json.loads(palermo("failed", "discard", "--all", "--yes", "--json").stdout)[0]["id"] == "3"
    assert ids(palermo, "failed") == []


@pytest.mark.usefixtures("three")
def test_ids_that_are_not_there_end_in_4_after_the_others(palermo: Palermo) -> None:
    result = palermo("failed", "requeue", "nobody", "1", code=4)

    assert "nobody" in result.stderr
    assert result.stdout == "requeued 1 job.\n"
    assert ids(palermo, "mail") == ["1"]


@pytest.mark.parametrize("command", [["requeue", "--yes"], ["discard", "--yes"]])
def test_all_of_nothing_is_done(palermo: Palermo, command: list[str]) -> None:
    assert palermo("failed", *command, "--all").exit_code == 0
    assert palermo("failed", *command, "--all", "--json").stdout == "[]\n"


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("command", [["requeue", "--yes"], ["discard", "--yes"]])
def test_a_filter_that_matches_nothing_ends_in_4(palermo: Palermo, command: list[str]) -> None:
    told = palermo("failed", *command, "--all", "--error", "TypeError", code=4)

    assert "TypeError" in told.stderr
    assert told.stdout == ""


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("command", [["requeue", "--yes"], ["discard", "--yes"]])
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--queue", "mail"],
        ["1", "--queue", "mail"],
        ["1", "--all"],
        ["--all", "--since", "2026-01-01T00:00"],
        ["--all", "--since", "yesterday"],
    ],
)
def test_filters_act_only_with_all(palermo: Palermo, command: list[str], arguments: list[str]) -> None:
    assert len(palermo("failed", *command, *arguments, code=2).stderr.splitlines()) == 1
    assert ids(palermo, "failed") == ["1", "2", "3"]


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    "command",
    [
        ["failed", "discard", "1"],
        ["failed", "discard", "--all"],
        ["failed", "requeue", "--all"],
        ["failed", "requeue", "--all", "--queue", "mail"],
        ["scheduled", "cancel", "--all"],
        ["scheduled", "run", "--all"],
        ["scheduled", "move", "--all", "--in", "1h"],
        ["retries", "run", "--all"],
        ["retries", "give-up", "--all"],
        ["purge", "failed"],
        ["purge", "--all"],
        ["delete", "failed"],
        ["dequeue", "shop.send"],
        ["control", "kill", "--all"],
        ["control", "stop", "--all"],
        ["recurring", "remove", "nightly"],
        ["topics", "replay", "mail"],
        ["topics", "remove", "mail"],
    ],
)
def test_what_destroys_or_changes_many_needs_yes_without_a_terminal(palermo: Palermo, command: list[str]) -> None:
    assert "--yes" in palermo(*command, code=2).stderr
    assert ids(palermo, "failed") == ["1", "2", "3"]


def test_show_tells_of_every_attempt_where_there_was_more_than_one(palermo: Palermo, client: Client) -> None:
    tried = tuple(Attempt.of(replace(failure(), message=f"no\n{number}"), number) for number in (1, 2))
    publish_failed(client, (message("7c9e", attempts=tried, retries=2), failure()))

    shown = palermo("failed", "show", "7c9e").stdout

    lines = [line.strip() for line in shown.partition("attempts")[2].splitlines() if line.strip()]
    assert [line.split()[0] for line in lines[:3]] == ["1", "2", "3"]
    assert lines[1].endswith("ValueError: no 2")
    row = json.loads(palermo("failed", "show", "7c9e", "--json").stdout)
    assert [one["attempt"] for one in row["attempts"]] == [1, 2, 3]


def test_a_requeue_that_the_broker_ends_says_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    def requeue() -> None:
        with _telling_how_far("requeued") as command:
            command.on_taken([TakenJob("1", "shop.send", "mail")])
            command.on_taken([TakenJob("2", "shop.send", "mail")])
            raise BrokerUnavailable("connection lost.")

    with pytest.raises(BrokerUnavailable):
        requeue()

    told = capsys.readouterr().err
    assert told == (
        "requeued 2 jobs before the error below. The others stay: give the command again."
        " Some may be both requeued and still failed.\n"
    )


def test_only_failures_of_one_worker_and_tenant_are_requeued(palermo: Palermo, client: Client) -> None:
    publish_failed(client, *((message(id, tenant=id), failure("Timeout")) for id in ("acme", "shop")))

    assert ids(palermo, "failed") == ["acme", "shop"]
    assert palermo("failed", "list", "--worker", "*@elsewhere").stderr.startswith("no failed jobs")
    palermo("failed", "requeue", "--all", "--yes", "--worker", "*@test", "--tenant", "ac*")

    assert ids(palermo, "failed") == ["shop"]
