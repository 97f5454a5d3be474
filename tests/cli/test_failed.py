"""`palermo failed`: failed jobs shown, requeued and discarded."""

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
        (message("1", "a"), failure(at=1_700_000_099)),
        (message("2", "b", queue="slow"), failure("KeyError")),
        (message("3", "c", job="shop.print", tenant="acme"), failure(text="too late")),
    )


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        (["--queue", "slow"], ["2"]),
        (["--job", "shop.p*"], ["3"]),
        (["--error", "KeyError"], ["2"]),
        (["--text", "LATE"], ["3"]),
        (["--since", "2023-11-14T22:15:00Z"], ["2", "3"]),
        (["--since", "2023-11-14T23:15:00+01:00"], ["2", "3"]),
        (["--since", "1h"], []),
        (["--tenant", "ac*"], ["3"]),
        (["--worker", "*@test"], ["1", "2", "3"]),
        (["--worker", "*@elsewhere"], []),
        (["--queue", "mail", "--error", "ValueError"], ["1", "3"]),
    ],
)
def test_filters_choose_what_is_listed_and_requeued(palermo: Palermo, filters: list[str], ids: list[str]) -> None:
    assert palermo.ids("failed", "list", *filters) == ids

    if ids:
        assert [row["id"] for row in palermo.rows("failed", "requeue", "--all", "--yes", *filters)] == ids
    assert [id for id in ("1", "2", "3") if id not in ids] == palermo.ids("failed", "list")


@pytest.mark.usefixtures("three")
def test_requeue_all_says_what_went_where(palermo: Palermo) -> None:
    assert palermo.rows("failed", "requeue", "--all", "--yes") == [
        {"id": "1", "job": "shop.send", "queue": "mail"},
        {"id": "2", "job": "shop.send", "queue": "slow"},
        {"id": "3", "job": "shop.print", "queue": "mail"},
    ]
    assert palermo.ids("jobs", "mail") == ["1", "3"]


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("flag", ["--to-queue", "--queue-to"])
def test_requeue_with_other_arguments_to_another_queue(palermo: Palermo, flag: str) -> None:
    palermo("failed", "requeue", "1", "--args", '["z"]', "--kwargs", '{"n": 1}', flag, "new", "--yes")

    (row,) = palermo.rows("jobs", "new")
    assert (row["args"], row["kwargs"], row["retries"], row["preview"]) == (["z"], {"n": 1}, 1, "'z', n=1")


@pytest.mark.usefixtures("three")
def test_requeue_to_a_mistyped_queue_asks_and_without_a_yes_does_nothing(
    palermo: Palermo, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(broker: Broker) -> None:
        await consume(broker, "legacy")

    client.run(serve)

    assert "Did you mean 'legacy'?" in palermo("failed", "requeue", "1", "--to-queue", "legcy", code=2).stderr
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is not sys.stdout)
    assert "'legcy'" in palermo("failed", "requeue", "1", "--to-queue", "legcy", code=1, stdin="n\n").stderr
    assert palermo.ids("failed", "list") == ["1", "2", "3"]
    assert "legcy" not in palermo("queues", "--json").stdout

    assert palermo("failed", "requeue", "1", "--to-queue", "legacy").stdout == "requeued 1 job.\n"


@pytest.mark.usefixtures("three")
def test_a_page_past_the_end_says_how_many_pages_there_are(palermo: Palermo) -> None:
    beyond = ["failed", "list", "--limit", "1", "--page", "4"]

    assert "3 in all, on 3 pages" in palermo(*beyond).stderr
    assert "with error='ValueError': 2 in all, on 2 pages" in palermo(*beyond, "--error", "ValueError").stderr


def test_a_group_of_failed_jobs_is_addressed_by_its_key(palermo: Palermo, client: Client) -> None:
    publish_failed(
        client,
        *((message(f"k{n}"), failure("KeyError", text)) for n, text in enumerate(("'a'", "'b'"))),
        *((message(f"v{n}", queue=queue), failure()) for n, queue in enumerate(("slow", "mail", "mail"))),
    )
    keys = {row["error"]: row["fingerprint"] for row in palermo.rows("failed", "groups")}

    assert list(keys) == ["ValueError", "KeyError"]
    assert palermo.ids("failed", "list", "--group", keys["KeyError"]) == ["k0", "k1"]
    palermo("failed", "requeue", "--all", "--yes", "--group", keys["ValueError"])
    palermo("failed", "discard", "--all", "--yes", "--group", keys["KeyError"])
    assert (palermo.ids("jobs", "slow"), palermo.ids("jobs", "mail")) == (["v0"], ["v1", "v2"])
    assert palermo.ids("failed", "list") == []


@pytest.mark.usefixtures("three")
def test_discard_by_id_and_all(palermo: Palermo) -> None:
    palermo("failed", "discard", "1", "--yes")
    assert palermo.ids("failed", "list") == ["2", "3"]
    palermo("failed", "discard", "--all", "--error", "KeyError", "--yes")
    assert palermo.ids("failed", "list") == ["3"]
    assert [row["id"] for row in palermo.rows("failed", "discard", "--all", "--yes")] == ["3"]
    assert palermo.ids("failed", "list") == []


@pytest.mark.usefixtures("three")
def test_ids_that_are_not_there_end_in_4_after_the_others(palermo: Palermo) -> None:
    result = palermo("failed", "requeue", "nobody", "1", code=4)

    assert "nobody" in result.stderr
    assert result.stdout == "requeued 1 job.\n"
    assert palermo.ids("jobs", "mail") == ["1"]


@pytest.mark.parametrize("action", ["requeue", "discard"])
def test_all_of_nothing_is_done_and_a_filter_that_matches_nothing_is_not(palermo: Palermo, action: str) -> None:
    assert palermo.rows("failed", action, "--yes", "--all") == []

    told = palermo("failed", action, "--yes", "--all", "--error", "TypeError", code=4)

    assert "TypeError" in told.stderr
    assert told.stdout == ""


def test_show_tells_of_every_attempt_where_there_was_more_than_one(palermo: Palermo, client: Client) -> None:
    tried = tuple(Attempt.of(replace(failure(), message=f"no\n{number}"), number) for number in (1, 2))
    publish_failed(client, (message("7c9e", attempts=tried, retries=2), failure()))

    shown = palermo("failed", "show", "7c9e").stdout

    lines = [line.strip() for line in shown.partition("attempts")[2].splitlines() if line.strip()]
    assert [line.split()[0] for line in lines[:3]] == ["1", "2", "3"]
    assert lines[1].endswith("ValueError: no 2")
    assert [one["attempt"] for one in palermo.rows("failed", "show", "7c9e")["attempts"]] == [1, 2, 3]


def test_a_requeue_that_the_broker_ends_says_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    def requeue() -> None:
        with _telling_how_far("requeued") as command:
            command.on_taken([TakenJob("1", "shop.send", "mail")])
            command.on_taken([TakenJob("2", "shop.send", "mail")])
            raise BrokerUnavailable("connection lost.")

    with pytest.raises(BrokerUnavailable):
        requeue()

    assert capsys.readouterr().err.startswith("requeued 2 jobs before the error below.")
