"""What listings show, and what no text of a job can do to a terminal."""

import pytest

from palermo.cli import output
from palermo.client.client import Client
from palermo.core.text import safe
from palermo.inspector.jobs import Jobs
from tests.cli.conftest import Palermo
from tests.inspector.jobs import failure, message, publish, publish_failed


def test_text_of_a_job_cannot_drive_the_terminal(palermo: Palermo, client: Client) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e"
    publish_failed(client, (message("1", job=f"a{evil}", preview=evil), failure(text=f"{evil}\n[red]bold[/red]")))

    for arguments in (["jobs", "failed"], ["failed", "list"], ["failed", "show", "1"], ["failed", "groups"]):
        text = palermo(*arguments).stdout
        assert not set("\x1b\x07\r\x9b\u202e").intersection(text)
    assert "[red]bold[/red]" in palermo("failed", "list").stdout
    assert safe("a\x1b[31m\nb\u202e") == "a\\x1b[31m\\nb\\u202e"
    assert safe("a\n\tb", lines=True) == "a\n\tb"


def test_an_id_is_never_broken_over_two_lines_of_a_terminal(palermo: Palermo, monkeypatch: pytest.MonkeyPatch) -> None:
    id = palermo("enqueue", "shop.mail.SendMail", "-q", "slow", "--args", '["ann@example.com"]').stdout.strip()
    monkeypatch.setattr(output, "is_terminal", lambda _: True)

    for columns, first in (("60", "Id: "), ("100", "Id: "), ("160", "Id")):
        monkeypatch.setenv("COLUMNS", columns)
        shown = palermo("jobs", "slow").stdout
        for whole in (id, "shop.mail.SendMail"):
            assert any(whole in line for line in shown.splitlines()), columns
        assert shown.strip().startswith(first)


def test_a_filtered_listing_tells_what_it_did_not_read(
    palermo: Palermo, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, *(message(id, "order 8") for id in "123"))
    monkeypatch.setitem(Jobs.list.__kwdefaults__, "depth", 2)

    shown = palermo("jobs", "mail", "--filter", '"order 8"')

    assert shown.stdout.count("order 8") == 2
    assert shown.stderr == "not searched: 1 job after the first ones.\n"
