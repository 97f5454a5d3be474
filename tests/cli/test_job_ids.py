"""The beginning of an id, as pages and listings show it, instead of the whole id."""

import json
import secrets
from pathlib import Path

import pytest

from palermo.cli.job_ids import chosen_id
from palermo.client.client import Client
from palermo.errors import IdInvalid
from palermo.settings.settings import Settings
from palermo.worker.handle import start_worker
from tests.cli.conftest import Palermo
from tests.helpers import eventually
from tests.rabbitmq_tidy import delete_all

#: Two ids that begin alike, and one of the user's own that is the beginning of another.
FIRST, SECOND = "7c9e12ab-1111-4111-8111-111111111111", "7c9e12ab-2222-4222-8222-222222222222"
OWN, LONGER = "order-17-paid", "order-17-paid-again"


def work(url: str, tmp_path: Path, text: str) -> None:
    """Run what waits, with a module of this text."""
    (tmp_path / "id_jobs.py").write_text(text)
    with start_worker(["id_jobs"], queues="jobs", url=url, burst=True) as worker:
        assert worker.wait(60) == 0


FAILS = "import palermo\n@palermo.job(name='break')\ndef fail():\n    raise ValueError('no')\n"


def test_failed_jobs_are_found_by_the_beginnings_of_their_ids(
    palermo: Palermo, client: Client, url: str, tmp_path: Path
) -> None:
    for id in (FIRST, SECOND, OWN, LONGER):
        client.enqueue("break", id=id)
    work(url, tmp_path, FAILS)

    assert json.loads(palermo("failed", "show", FIRST[:10], "--json").stdout)["id"] == FIRST
    assert palermo("failed", "requeue", SECOND[:10]).stdout == "requeued 1 job.\n"
    assert palermo("failed", "discard", "--yes", FIRST[:8], OWN).stdout == "discarded 2 jobs.\n"
    assert [row["id"] for row in json.loads(palermo("failed", "list", "--json").stdout)] == [LONGER]


def test_the_beginning_of_several_ids_does_nothing_and_lists_them(
    palermo: Palermo, client: Client, url: str, tmp_path: Path
) -> None:
    for id in (FIRST, SECOND):
        client.enqueue("break", id=id)
    work(url, tmp_path, FAILS)

    (line,) = palermo("failed", "requeue", FIRST[:8], code=2).stderr.splitlines()

    both = f"'7c9e12ab' is the beginning of 2 ids: {FIRST}, {SECOND}"
    assert line == f"palermo: IdInvalid: {both}. Write more of the one that you mean."
    assert len(json.loads(palermo("failed", "list", "--json").stdout)) == 2


def test_fewer_than_eight_characters_are_no_beginning(palermo: Palermo, client: Client) -> None:
    client.enqueue("break", id=FIRST, delay=3600)

    assert palermo("scheduled", "cancel", FIRST[:7], code=4).stdout == f"{FIRST[:7]}: fired already or not there.\n"
    assert len(json.loads(palermo("scheduled", "list", "--json").stdout)) == 1


def test_scheduled_jobs_are_found_by_the_beginnings_of_their_ids(palermo: Palermo, client: Client) -> None:
    for id in (FIRST, OWN):
        client.enqueue("break", id=id, delay=3600)

    assert palermo("scheduled", "cancel", FIRST[:8]).stdout.startswith(f"{FIRST}: ")
    assert palermo("scheduled", "run", OWN[:8]).stdout.startswith(f"{OWN}: ")


def test_a_waiting_job_is_found_and_cancelled_by_the_beginning_of_its_id(palermo: Palermo, client: Client) -> None:
    client.enqueue("break", id=FIRST)

    assert json.loads(palermo("status", FIRST[:8], "--json").stdout)["id"] == FIRST
    assert palermo("cancel", FIRST[:8]).stdout.startswith(f"{FIRST}: ")
    eventually(lambda: json.loads(palermo("status", FIRST[:8], "--json").stdout)["state"] == "cancelled")


def test_an_ended_job_is_found_by_the_beginning_of_its_id(
    palermo: Palermo, client: Client, url: str, tmp_path: Path
) -> None:
    client.enqueue("give", id=FIRST, keep_result=True)
    work(url, tmp_path, "import palermo\n@palermo.job(name='give')\ndef give():\n    return 5\n")

    [row] = json.loads(palermo("wait", FIRST[:8], "--json").stdout)
    assert (row["id"], row["result"]) == (FIRST, 5)
    assert palermo("history", FIRST[:8]).stdout == palermo("history", FIRST).stdout


def test_many_ids_that_begin_alike_are_counted() -> None:
    with pytest.raises(IdInvalid, match=r"of 7 ids: order-170, .*, order-174 and 2 more\."):
        chosen_id("order-17", [f"order-17{number}" for number in range(7)])


def test_jobs_on_rabbitmq_are_found_by_the_beginnings_of_their_ids(
    palermo: Palermo, rabbitmq_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = f"ids-{secrets.token_hex(6)}"
    monkeypatch.setenv("PALERMO_URL", rabbitmq_url)
    monkeypatch.setenv("PALERMO_EXCHANGE", exchange)
    (tmp_path / "id_jobs.py").write_text(FAILS)
    try:
        with Client(Settings(url=rabbitmq_url, exchange=exchange, publish_timeout=30.0)) as client:
            client.enqueue("break", id=FIRST)
            with start_worker(["id_jobs"], queues="jobs", url=rabbitmq_url, exchange=exchange, burst=True) as worker:
                assert worker.wait(60) == 0
            client.enqueue("break", id=OWN, delay=3600)
            client.enqueue("break", id=LONGER)

        assert json.loads(palermo("failed", "show", FIRST[:8], "--json").stdout)["id"] == FIRST
        assert json.loads(palermo("status", OWN, "--json").stdout)["state"] == "scheduled"
        assert json.loads(palermo("status", LONGER[:15], "--json").stdout)["id"] == LONGER
        assert "is the beginning of 2 ids" in palermo("cancel", OWN[:8], code=2).stderr
        assert palermo("failed", "requeue", FIRST[:8]).stdout == "requeued 1 job.\n"
    finally:
        delete_all(rabbitmq_url, exchange)
