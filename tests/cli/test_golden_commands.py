"""What each command says, on one shop: tests/golden/commands holds the words, one file for each command.

Tests of the commands look for ids, states and exit codes; a sentence that changes shows here. The lines of a file that
begin with `$ palermo` are run one after the other on the same shop; to show another one, write its line and run
`PALERMO_GOLDEN=1`.
"""

import re
import shlex
import sys
import time

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from palermo.cli import COMMANDS, main, output
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.contract.events import Subscription
from tests.harness.golden import GOLDEN, assert_golden
from tests.history.written import done_by, ended, enqueued, failed, write
from tests.inspector.jobs import failure, message, publish, publish_failed
from tests.inspector.workflows import add_order, end_step
from tests.webui.scheduled_jobs import DAY, due, retrying

SHOWN = sorted(path.stem for path in (GOLDEN / "commands").glob("*.txt"))

#: After a command: it is asked on a terminal, where the answer is no.
ASKED = " (on a terminal)"


@pytest.fixture
def shop(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    publish_failed(
        client,
        (message("f1", "f1", extra={"request-id": "r-17"}), failure()),
        (message("f2", "f2"), failure()),
        (message("f3", queue="slow"), failure("KeyError", "'size'")),
    )
    publish(client, message("m1", "ann@example.com"), message("m2", "bob@example.com", preview="'bob@example.com'"))
    publish(client, message("i1", queue="images", tenant="acme"), message("i2", queue="images", tenant="zebra"))
    publish(
        client, *(due(f"s{nth}", nth * DAY) for nth in (1, 2, 3)), retrying("r1", DAY), retrying("r2", DAY, times=2)
    )
    with Client(replace(client.settings, journal="off")) as uncounted:
        uncounted.enqueue("shop.sync", [1], queue="keyed", id="u1", unique="until_done", unique_key="eu")
    discarded = ended("h4", "discarded", reason="gone")
    write(client, [enqueued("h1"), ended("h1"), failed("h2"), discarded, ended("order-16-done")])
    result = {"content_type": "application/json", "text": '{"when": {"$palermo": "date", "value": "2026-01-02"}}'}
    write(client, [ended("h3", result=result), ended("h5", refused="the result is too large")])
    write(client, [{**ended("h6", "progress"), "fraction": 0.0}, failed("h6", "retried", delay=5), ended("h6")])
    counts = {"kind": "counts", "queue": "mail", "job": "shop.send", "at": time.time() - 1_800, "run": {"40": 6}}
    up = {"kind": "worker_up", "release": "1.4.2", "at": time.time() - 1_800}
    write(client, [{**counts, "succeeded": 3, "at": time.time() - 7_200}, {**counts, "succeeded": 1, "retried": 1}, up])
    write(client, [done_by("anna", "requeue", ids=["a1"], count=1), done_by("bert", "pause", queue="mail")], writer="")
    client.run(_serve)


async def _serve(broker: Broker) -> None:
    """Two groups of topics, whose workers are there no more."""
    for group, topic in (("mail", "order.*"), ("audit", "#")):
        one = Subscription(group=group, queue=f"palermo_{group}", topics=(topic,), function="x")
        await broker.events.subscribe(one)


def test_golden_files_show_every_command_but_those_that_go_on() -> None:
    # The pages have golden files of their own, and the demo is a film.
    assert {*SHOWN, "web", "web-user", "demo"} == {*COMMANDS, "palermo"}


@pytest.mark.slow
@pytest.mark.usefixtures("shop", "palermo")
@pytest.mark.parametrize("name", SHOWN)
def test_golden_words_of_a_command(client: Client, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    text = (GOLDEN / "commands" / f"{name}.txt").read_text()
    shown: list[str] = []
    if name == "workflows":
        client.run(add_order)
        client.run(lambda broker: end_step(broker, "unpack"))
    known = _stored(client)
    for line in re.findall(r"^\$ palermo (.*)$", text, re.MULTILINE):
        shown.append(_shown(monkeypatch, line))
        before, known = known, _stored(client)
        assert known == before or not shown[-1].endswith("-> 2"), f"wrong usage changes nothing: {line}"

    assert_golden("commands", name, re.sub(r" {2,}", "  ", "\n\n".join(shown)))


def _stored(client: Client) -> object:
    return client.run(lambda broker: broker.queues()), client.run(lambda broker: broker.recurring())


def _shown(monkeypatch: pytest.MonkeyPatch, line: str) -> str:
    command = line.removesuffix(ASKED)
    with monkeypatch.context() as patch:
        patch.setattr(output, "is_terminal", lambda stream: command != line and stream is not sys.stdout)
        done = CliRunner().invoke(main, shlex.split(command), input="n\n" if command != line else None)
    said = "\n".join(part.rstrip() for part in (done.stdout, done.stderr) if part.strip())
    said = re.sub(r"(?<=[-~])[0-9a-f]{8}\b", "<random>", re.sub(r"program: .*", "program: <versions>", said))
    return f"$ palermo {line}\n{said}\n-> {done.exit_code}"
