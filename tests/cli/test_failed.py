"""`palermo failed`: failed jobs shown, requeued and discarded."""

import sys
from collections.abc import Callable

import pytest

from palermo.cli import output
from palermo.cli.failed import run_on_failed
from palermo.client.client import Client
from palermo.contract.broker import Broker
from palermo.errors import BrokerUnavailable
from palermo.inspector.judges import TakenJob
from tests.cli.conftest import Palermo
from tests.contract.workers import consume
from tests.inspector.jobs import failure, message, publish_failed


def test_requeue_to_a_mistyped_queue_asks_and_without_a_yes_does_nothing(
    palermo: Palermo, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def serve(broker: Broker) -> None:
        await consume(broker, "legacy")

    client.run(serve)
    publish_failed(client, (message("1"), failure()))

    assert "Did you mean 'legacy'?" in palermo("failed", "requeue", "1", "--to-queue", "legcy", code=2).stderr
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is not sys.stdout)
    assert "'legcy'" in palermo("failed", "requeue", "1", "--to-queue", "legcy", code=1, stdin="n\n").stderr
    assert palermo.ids("failed", "list") == ["1"]
    assert "legcy" not in palermo("queues", "--json").stdout

    assert palermo("failed", "requeue", "1", "--to-queue", "legacy").stdout == "requeued 1 job.\n"


def test_a_requeue_that_the_broker_ends_says_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    def requeue(which: object, *, on_taken: Callable[[list[TakenJob]], None], **_: object) -> list[TakenJob]:
        on_taken([TakenJob("1", "shop.send", "mail")])
        on_taken([TakenJob("2", "shop.send", "mail")])
        raise BrokerUnavailable("connection lost.")

    with pytest.raises(BrokerUnavailable):
        run_on_failed("requeue", "requeued", requeue, (), as_json=False)

    assert capsys.readouterr().err.startswith("requeued 2 jobs before the error below.")
