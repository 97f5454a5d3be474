"""Mistakes in the user's own code, names and broker URL, as `palermo enqueue` and `palermo worker` tell them."""

import re
import shlex
from pathlib import Path

import pytest

from palermo.worker.process import usable_processors
from tests.cli.conftest import Palermo, Process
from tests.harness.golden import GOLDEN
from tests.rabbitmq_node import free_port

SHOP = """
import palermo

@palermo.job(queue="pictures")
def resize(path: str, width: int = 640) -> None: ...

@palermo.job(tenant=lambda order: order["client"], queue="bills")
def bill(order: dict) -> None: ...
"""


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """The name of a module with two jobs, which the command line can import."""
    (tmp_path / "mistaken_shop.py").write_text(SHOP)
    return "mistaken_shop"


def test_enqueue_with_the_code_knows_its_queue(palermo: Palermo, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = palermo("enqueue", f"{shop}.resize", "--import", shop, "--args", '["a.png"]')
    monkeypatch.setenv("PALERMO_IMPORTS", shop)
    named = palermo("enqueue", f"{shop}.resize", "--args", '["a.png"]')

    assert palermo.ids("jobs", "pictures") == [given.stdout.strip(), named.stdout.strip()]
    assert (given.stderr, named.stderr) == ("", "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["resise"], "Did you mean 'mistaken_shop.resize'?"),
        (["resize", "--kwargs", '{"colour": "red"}'], "path"),
        (["bill", "--args", "[{}]"], "mistaken_shop.py, line 7"),
        (["bill", "--args", "[{}]"], "tenant of job 'mistaken_shop.bill' raised KeyError: 'client'"),
    ],
)
def test_enqueue_refuses_what_does_not_fit_code(palermo: Palermo, shop: str, arguments: list[str], told: str) -> None:
    name, *more = arguments

    (line,) = palermo("enqueue", f"{shop}.{name}", "--import", shop, *more, code=2).stderr.splitlines()

    assert told in line
    assert [row["name"] for row in palermo.rows("queues")] == ["failed"]


BROKEN = """
import palermo
from broken_parts import price

@palermo.job
def bill(): ...
"""

PARTS = """
def read(name):
    return {}[name]

price = read("price")
"""


@pytest.mark.parametrize(
    "command", ["worker broken_shop", "enqueue broken_shop.bill --import broken_shop", "worker broken_shop --debug"]
)
def test_a_module_that_fails_to_import_shows_the_users_frames(process: Process, tmp_path: Path, command: str) -> None:
    (tmp_path / "broken_shop.py").write_text(BROKEN)
    (tmp_path / "broken_parts.py").write_text(PARTS)

    done = process(*command.split())

    assert done.returncode != 0
    for line, text in ((5, 'price = read("price")'), (3, "return {}[name]")):
        assert f'broken_parts.py", line {line}, in ' in done.stderr
        assert f"    {text}\n" in done.stderr
    assert 'broken_shop.py", line 3, in <module>' in done.stderr
    assert "KeyError: 'price'\n" in done.stderr
    if "--debug" not in command:
        assert "importlib" not in done.stderr
        assert "site-packages" not in done.stderr
        assert "/palermo/" not in done.stderr


def test_a_wrong_decorator_and_a_syntax_error_are_named_with_their_line(process: Process, tmp_path: Path) -> None:
    (tmp_path / "wrong_shop.py").write_text('import palermo\n\n@palermo.job(queue="mail ")\ndef send(): ...\n')
    (tmp_path / "torn_shop.py").write_text("import palermo\n\ndef bill(:\n")

    for command in ("worker wrong_shop", "enqueue wrong_shop.send --import wrong_shop"):
        done = process(*command.split())
        assert done.returncode != 0
        assert f"{tmp_path}/wrong_shop.py, line 3" in done.stderr.splitlines()[-1]
    torn = process("worker", "torn_shop").stderr
    assert ('torn_shop.py", line 3' in torn, "^" in torn, "importlib" in torn) == (True, True, False)


def test_a_worker_warns_of_an_undeclared_queue_and_counts_processors(process: Process, shop: str) -> None:
    done = process("worker", shop, "-q", "pictrues,bills,file_*", "-c", "auto", "--burst")

    assert done.returncode == 0
    [warning] = [line for line in done.stderr.splitlines() if "no job of these modules" in line]
    assert "queue=pictrues Did you mean 'pictures'?" in warning
    assert "bills" not in warning
    assert f"slots={usable_processors()} " in done.stderr


@pytest.mark.parametrize(
    ("quota", "processors"), [("150000 100000", 2), ("1000 100000", 1), ("max 100000", None), ("", None)]
)
def test_a_container_has_the_processors_it_has_time_for(tmp_path: Path, quota: str, processors: int | None) -> None:
    (tmp_path / "cpu.max").write_text(quota)

    most = usable_processors(tmp_path / "none")
    assert usable_processors(tmp_path / "cpu.max") == (most if processors is None else min(most, processors))


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


@pytest.mark.parametrize(
    ("command", "name"), [(("enqueue", "x", "--args"), "--args"), (("workflows", "signal", "w1", "approved"), "VALUE")]
)
def test_deeply_nested_json_is_a_mistake(palermo: Palermo, command: tuple[str, ...], name: str) -> None:
    assert f"{name} is nested too deeply." in palermo(*command, "[" * 100_000, code=2).stderr
