"""What each command says, on one shop: tests/golden/commands holds the words, one file for each command.

Tests of the commands look for ids, states and exit codes; a sentence that changes shows here.
"""

import re
import shlex
import sys

import pytest
from click.testing import CliRunner

from palermo.cli import COMMANDS, main, output
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.contract.events import Subscription
from tests.cli.conftest import Palermo
from tests.harness.golden import assert_golden
from tests.history.written import done_by, ended, enqueued, failed, write
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.webui.scheduled_jobs import DAY, due, retrying

#: Each command with the invocations that its file shows, one after the other on the same shop. A `?` before one
#: means that it is asked on a terminal, where the answer is no.
SAID = {
    "palermo": [
        "frobnicate",
        "quues",
        "queues --jsn",
        "queues --url nonsense",
        "queues --url amqp://me:pw@127.0.0.1:1/",
    ],
    "worker": [
        "worker",
        "worker shop -c 0",
        "worker shop -q failed",
        "worker shop -q high:0",
    ],
    "enqueue": [
        "enqueue shop.send -q mail --id new",
        "enqueue shop.send --id plain",
        "enqueue shop.send -q mial --id lost",
        "enqueue shop.send -q mail --id one --unique until_done",
        "enqueue shop.send -q mail --id one --unique until_done",
        "enqueue shop.send -q mail --id one --unique until_done --on-duplicate raise",
        "enqueue shop.send -q mail --id one --unique until_done --on-duplicate replace --args [1]",
        "enqueue shop.index -q mail --id first --unique-key home --debounce 1h",
        "enqueue shop.index -q mail --id second --unique-key home --debounce 1h",
        """enqueue shop.send --args "['a.png']" """,
        "enqueue shop.send --args {}",
        "enqueue shop.send --kwargs []",
        "enqueue shop.send -q a,b",
        "enqueue shop.send -q failed",
        "enqueue shop.send --in soon",
        "enqueue shop.send --at 2026-12-01T09:00",
        "enqueue shop.send --unique forever",
        "enqueue shop.send --priority 10",
        r"""enqueue shop.send --args '[1, {"a": "\ud800"}]'""",
    ],
    "publish": ["publish order.paid --id e1", "publish order.*", "publish order.paid --payload {"],
    "dequeue": [
        "dequeue shop.send -q mail",
        "? dequeue shop.send -q mail",
        "dequeue shop.send -q mail --yes",
        "dequeue shop.send -q mail --yes",
    ],
    "queues": ["queues", "queues more"],
    "jobs": ["jobs mail", "jobs mail --limit 1", "jobs mail --page 9", "jobs nowhere", "jobs amq.x"],
    "tenants": ["tenants images", "tenants images --limit 1", "tenants mail --tenant nobody", "tenants nowhere"],
    "workers": ["workers"],
    "limits": ["limits"],
    "stats": ["stats"],
    "top": ["top --once --interval soon"],
    "failed": [
        "failed",
        "failed lst",
        "failed list",
        "failed list --limit 1 --page 9",
        "failed list --error Other",
        "failed groups",
        "failed show f1",
        "failed show nobody",
        "failed requeue f1",
        "failed requeue nobody",
        "failed requeue f2 --to-queue mial",
        "failed requeue --all",
        "? failed requeue --all",
        "failed requeue --all --yes --error TypeError",
        "failed requeue --all --yes --group 000000000000",
        "failed requeue --queue mail",
        "failed discard f2",
        "failed discard f2 --yes",
        "failed discard --all --queue '' --yes",
        "failed discard f3 --all",
        "failed discard --all --since yesterday",
    ],
    "scheduled": [
        "scheduled list",
        "scheduled list --queue none",
        "? scheduled cancel --all",
        "scheduled cancel --all",
        "scheduled cancel s1",
        "scheduled cancel nobody",
        "scheduled run s2",
        "scheduled move s3 --at 2130-01-01T00:00Z",
        "scheduled move s3",
        "scheduled cancel --all --args [1]",
        "scheduled cancel --all --job none --args [1] --yes",
    ],
    "retries": [
        "retries list",
        "retries run r1",
        "retries give-up r2",
        "retries give-up s1",
        "retries list --job none",
    ],
    "unique": ["unique list", "unique free shop.sync:eu", "unique free shop.sync:eu", "unique free", "unique list"],
    "recurring": [
        "recurring list",
        "recurring add nightly shop.sweep -q mail --cron '30 2 * * 1-5' --tz Europe/Rome",
        "recurring add often shop.sweep --every 1m30s",
        "recurring list",
        "recurring show often",
        "recurring disable often",
        "recurring enable often",
        "recurring remove often",
        "recurring remove often --yes",
        "recurring show often",
        "recurring add x shop.sweep",
        "recurring add x shop.sweep --cron '61 * * * *'",
        "recurring add x shop.sweep --every 5 --cron '* * * * *'",
    ],
    "topics": ["topics", "topics replay mail", "topics replay mail --yes", "topics remove mail --yes", "topics"],
    "history": [
        "history",
        "history h1",
        "history a1",
        "history nobody",
        "history --state finished",
        "history --job none",
    ],
    "audit": ["audit --by anna", "audit --action purge"],
    "pause": ["pause mail", "pause typo", "pause --all", "pause mail --all", "pause '*'", "pause failed", "check"],
    "resume": [
        "resume mail",
        "pause images",
        "pause --all",
        "resume mail",
        "resume --all",
        "resume --all",
        "resume typo",
    ],
    "cancel": ["cancel m1 nobody", "cancel s1", "jobs mail"],
    "control": [
        "control quiet 4711",
        "control stack --all",
        "control kill --all",
        "control quiet 1 --all",
        "control dance",
    ],
    "status": ["status m1", "status f1", "status s1", "status h1", "status nobody"],
    "wait": ["wait h1", "wait h2", "wait m1 --timeout 0.1", "wait nobody", "wait"],
    "purge": [
        "purge mail",
        "? purge mail",
        "purge mail --yes",
        "purge images --tenant acme --yes",
        "purge --all --yes",
        "purge nowhere --yes",
    ],
    "delete": ["delete mail", "? delete mail", "delete mail --yes", "delete nowhere --yes"],
    "migrate": ["migrate mail --type quorum"],
    "check": [
        "check",
        "check --max-pending 1",
        "check --workers 1 --queue mail",
        "check --max-age soon",
        "check --queue mial",
    ],
    "doctor": ["doctor --url amqp://me:pw@127.0.0.1:1/", "doctor --url sqlite:///jbos.db"],
}


@pytest.fixture
def shop(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    publish_failed(
        client,
        *((message(id, id), failure()) for id in ("f1", "f2")),
        (message("f3", queue="slow"), failure("KeyError", "'size'")),
    )
    publish(client, message("m1", "ann@example.com"), message("m2", "bob@example.com", preview="'bob@example.com'"))
    publish(client, message("i1", queue="images", tenant="acme"), message("i2", queue="images", tenant="zebra"))
    publish(
        client, *(due(f"s{nth}", nth * DAY) for nth in (1, 2, 3)), retrying("r1", DAY), retrying("r2", DAY, times=2)
    )
    client.enqueue("shop.sync", [1], queue="keyed", id="u1", unique="until_done", unique_key="eu")
    write(client, [enqueued("h1"), ended("h1"), failed("h2")])
    write(client, [done_by("anna", "requeue", ids=["a1"], count=1), done_by("bert", "pause", queue="mail")], writer="")
    client.run(_serve)


async def _serve(broker: Broker) -> None:
    """One group of a topic, whose worker is there no more."""
    await broker.events.subscribe(Subscription(group="mail", queue="palermo_mail", topics=("order.*",), function="x"))


def test_golden_files_show_every_command_but_those_that_go_on() -> None:
    # The pages have golden files of their own, and the demo is a film.
    assert {*SAID, "web", "web-user", "demo", "clients"} == {*COMMANDS, "palermo"}


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("name", SAID)
def test_golden_words_of_a_command(palermo: Palermo, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    shown = [_shown(monkeypatch, line) for line in SAID[name]]

    assert_golden("commands", name, re.sub(r" {2,}", "  ", "\n\n".join(shown)))


def _shown(monkeypatch: pytest.MonkeyPatch, line: str) -> str:
    asked = line.startswith("? ")
    command = line.removeprefix("? ")
    with monkeypatch.context() as patch:
        patch.setattr(output, "is_terminal", lambda stream: asked and stream is not sys.stdout)
        done = CliRunner().invoke(main, shlex.split(command), input="n\n" if asked else None)
    said = "\n".join(part.rstrip() for part in (done.stdout, done.stderr) if part.strip())
    said = re.sub(r"program: .*", "program: <versions>", said)
    return f"$ palermo {command}{' (on a terminal)' if asked else ''}\n{said}\n-> {done.exit_code}"
