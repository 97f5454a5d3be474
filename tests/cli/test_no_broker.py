"""Commands where there is no broker: a mistyped path creates nothing, and a server that is down is named."""

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Palermo
from tests.harness.golden import GOLDEN
from tests.rabbitmq_node import free_port

#: Commands that make the broker's file.
STORING = ("enqueue", "publish", "recurring add")

#: What each command of a golden file does without an error there: it looks, or changes what is there.
DONE = {
    path.stem: re.findall(r"^\$ palermo (.*)\n(?:(?!-> ).*\n)*-> 0$", path.read_text(), re.MULTILINE)
    for path in (GOLDEN / "commands").glob("*.txt")
} | {"top": ["top --once"]}


@pytest.mark.parametrize("name", sorted(name for name, lines in DONE.items() if lines))
def test_a_mistyped_sqlite_path_is_named_and_nothing_is_created(palermo: Palermo, tmp_path: Path, name: str) -> None:
    before = sorted(tmp_path.iterdir())

    for command in DONE[name]:
        if not command.startswith(STORING) and "--help" not in command:
            (line,) = palermo(*shlex.split(command), "--url", "sqlite:///jbos.db", code=3).stderr.splitlines()
            assert f"there is no file {tmp_path}/jbos.db" in line
    assert sorted(tmp_path.iterdir()) == before


def test_a_command_that_stores_something_creates_the_file(palermo: Palermo, tmp_path: Path) -> None:
    for command in ("enqueue shop.send", "publish order.paid", "recurring add nightly shop.send --every 1h"):
        name = f"{command.split()[0]}.db"
        palermo(*command.split(), "--url", f"sqlite:///{name}")
        assert (tmp_path / name).exists()


@pytest.mark.parametrize("command", ["queues", "check", "failed requeue 1", "enqueue shop.send -q mail"])
def test_an_absent_broker_is_named_and_ends_in_3(
    palermo: Palermo, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("PALERMO_PUBLISH_TIMEOUT", "0.5")
    port = free_port()

    done = palermo(*command.split(), "--url", f"amqp://me:secret@127.0.0.1:{port}/", code=3)

    (line,) = done.stderr.splitlines()
    assert (done.stdout, "secret" in line) == ("", False)
    assert re.search(f"BrokerUnavailable: .*127.0.0.1:{port}", line)
