import json

import pytest

from palermo.cli import output
from palermo.client.client import Client
from palermo.core.text import safe
from tests.cli.conftest import Palermo
from tests.inspector.jobs import failure, message, publish, publish_failed


def test_queues_as_json_are_one_array(palermo: Palermo, client: Client) -> None:
    publish(client, message("1"))

    assert json.loads(palermo("queues", "--json").stdout) == [
        {"name": "failed", "pending": 0, "in_progress": 0, "workers": 0, "paused": False},
        {"name": "mail", "pending": 1, "in_progress": 0, "workers": 0, "paused": False},
    ]


def test_jobs_are_listed_in_queue_order_by_page(palermo: Palermo, client: Client) -> None:
    publish(client, *(message(str(n), n) for n in range(5)))

    first = json.loads(palermo("jobs", "mail", "--json", "--limit", "2").stdout)
    second = json.loads(palermo("jobs", "mail", "--json", "--limit", "2", "--page", "2").stdout)
    newest = json.loads(palermo("jobs", "mail", "--json", "--limit", "2", "--newest").stdout)

    assert [[row["id"] for row in page] for page in (first, second, newest)] == [["0", "1"], ["2", "3"], ["4", "3"]]
    assert (first[0]["args"], first[0]["state"]) == ([0], "pending")


@pytest.mark.parametrize("arguments", [["workers"], ["failed", "list"], ["failed", "groups"]])
def test_an_empty_listing_is_done(palermo: Palermo, arguments: list[str]) -> None:
    assert palermo(*arguments, "--json").stdout == "[]\n"
    assert palermo(*arguments).stdout == ""


def test_an_empty_queue_that_exists_is_done(palermo: Palermo, client: Client) -> None:
    publish(client, message("1"))
    client.run(lambda broker: broker.purge("mail"))

    assert palermo("jobs", "mail", "--json").stdout == "[]\n"


def test_failed_jobs_are_listed_with_their_error(palermo: Palermo, client: Client) -> None:
    publish_failed(client, (message("1", "x"), failure()))

    (row,) = json.loads(palermo("failed", "list", "--json").stdout)

    assert (row["id"], row["queue"], row["state"], row["retries"]) == ("1", "mail", "failed", 0)
    assert row["error"]["class"] == "ValueError"
    assert "ValueError: no such address" in palermo("failed", "list").stdout


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
        (["--queue", "mail", "--error", "ValueError"], ["1", "3"]),
    ],
)
def test_filters_choose_what_is_listed(palermo: Palermo, client: Client, filters: list[str], ids: list[str]) -> None:
    publish_failed(
        client,
        (message("1"), failure(at=1_700_000_099)),
        (message("2", queue="slow"), failure("KeyError")),
        (message("3", job="shop.print"), failure(text="too late")),
    )

    rows = json.loads(palermo("failed", "list", "--json", *filters).stdout)

    assert [row["id"] for row in rows] == ids


def test_text_of_a_job_cannot_drive_the_terminal(palermo: Palermo, client: Client) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e"
    publish_failed(client, (message("1", job=f"a{evil}", preview=evil), failure(text=f"{evil}\n[red]bold[/red]")))

    for arguments in (["jobs", "failed"], ["failed", "list"], ["failed", "show", "1"], ["failed", "groups"]):
        text = palermo(*arguments).stdout
        assert not set("\x1b\x07\r\x9b\u202e").intersection(text)
    assert "[red]bold[/red]" in palermo("failed", "list").stdout


def test_rows_that_do_not_decode_are_listed_all_the_same(palermo: Palermo, client: Client) -> None:
    publish(client, message("1", body=b"\xff\xfe"), message("2", body=b"x", content_type="application/x-pickle"))

    rows = json.loads(palermo("jobs", "mail", "--json").stdout)

    assert [(row["args"], row["kwargs"]) for row in rows] == [(None, None), (None, None)]
    palermo("jobs", "mail")


@pytest.mark.parametrize(("columns", "first"), [("60", "Id: "), ("100", "Id: "), ("160", "Id")])
def test_an_id_is_never_broken_over_two_lines_of_a_terminal(
    palermo: Palermo, monkeypatch: pytest.MonkeyPatch, columns: str, first: str
) -> None:
    id = palermo("enqueue", "shop.mail.SendMail", "-q", "slow", "--args", '["ann@example.com"]').stdout.strip()
    monkeypatch.setattr(output, "is_terminal", lambda _: True)
    monkeypatch.setenv("COLUMNS", columns)

    lines = palermo("jobs", "slow").stdout.splitlines()

    assert any(id in line for line in lines)
    assert any("shop.mail.SendMail" in line for line in lines)
    assert next(line for line in lines if line.strip()).strip().startswith(first)


def test_control_characters_are_written_as_escapes() -> None:
    assert safe("a\x1b[31m\nb\u202e") == "a\\x1b[31m\\nb\\u202e"
    assert safe("a\n\tb", lines=True) == "a\n\tb"
