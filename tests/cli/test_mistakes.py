"""The answers to mistyped commands, queues, jobs and arguments."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from palermo.worker.process import usable_processors
from tests.cli.conftest import Palermo

Process = Callable[..., "subprocess.CompletedProcess[str]"]

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


def pending(process: Process) -> dict[str, int]:
    """How many jobs wait in each queue where some do."""
    rows = json.loads(process("queues", "--json").stdout)
    return {row["name"]: row["pending"] for row in rows if row["pending"]}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["quues"], "'queues'"),
        (["failed", "lst"], "'list'"),
        (["scheduled", "cancle"], "'cancel'"),
        (["queues", "--jsn"], "'--json'"),
        (["worker", "shop", "--concurency", "2"], "'--concurrency'"),
    ],
)
def test_a_mistyped_command_or_option_gets_a_suggestion(palermo: Palermo, typed: list[str], meant: str) -> None:
    (line,) = palermo(*typed, code=2).stderr.splitlines()

    assert f"Did you mean {meant}?" in line
    assert "?." not in line


@pytest.mark.parametrize(("typed", "command"), [([], "worker"), (["failed"], "requeue")])
def test_a_group_without_a_command_shows_its_help_line_by_line(
    palermo: Palermo, typed: list[str], command: str
) -> None:
    usage, *lines = palermo(*typed, code=2).stderr.splitlines()

    assert usage.startswith("Usage: ")
    assert any(line.startswith(f"  {command} ") for line in lines)


def test_enqueue_refuses_a_job_that_the_code_does_not_declare(process: Process, shop: str) -> None:
    done = process("enqueue", f"{shop}.resise", "--import", shop)

    assert done.returncode == 2
    assert f"no job '{shop}.resise' in {shop}. Did you mean '{shop}.resize'?" in done.stderr
    assert done.stderr.count("\n") == 1
    assert pending(process) == {}


def test_enqueue_refuses_arguments_that_do_not_fit_the_code(process: Process, shop: str) -> None:
    done = process("enqueue", f"{shop}.resize", "--import", shop, "--kwargs", '{"colour": "red"}')

    assert done.returncode == 2
    assert "colour" in done.stderr or "path" in done.stderr
    assert done.stderr.count("\n") == 1
    assert pending(process) == {}


def test_enqueue_with_the_imported_code_puts_the_job_into_its_own_queue(process: Process, shop: str) -> None:
    done = process("enqueue", f"{shop}.resize", "--import", shop, "--args", '["a.png"]')

    assert (done.returncode, done.stderr) == (0, "")
    assert pending(process) == {"pictures": 1}


def test_an_error_in_a_tenant_function_is_named_with_its_line(process: Process, shop: str, tmp_path: Path) -> None:
    done = process("enqueue", f"{shop}.bill", "--import", shop, "--args", "[{}]")

    assert done.returncode == 2
    assert f"the function given as tenant of job '{shop}.bill' raised KeyError: 'client'" in done.stderr
    assert f"{shop}.py, line 7" in done.stderr


def test_a_wrong_decorator_is_named_with_its_file_and_line(process: Process, tmp_path: Path) -> None:
    (tmp_path / "wrong_shop.py").write_text('import palermo\n\n@palermo.job(queue="mail ")\ndef send(): ...\n')

    for arguments in (["worker", "wrong_shop"], ["enqueue", "wrong_shop.send", "--import", "wrong_shop"]):
        done = process(*arguments)
        assert done.returncode != 0
        *_, line = done.stderr.splitlines()
        assert f"{tmp_path}/wrong_shop.py, line 3" in line


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


@pytest.mark.parametrize("debug", [(), ("--debug",)])
@pytest.mark.parametrize(
    "command", [("worker", "broken_shop"), ("enqueue", "broken_shop.bill", "--import", "broken_shop")]
)
def test_a_module_that_fails_to_import_shows_the_users_frames(
    process: Process, tmp_path: Path, command: tuple[str, ...], debug: tuple[str, ...]
) -> None:
    (tmp_path / "broken_shop.py").write_text(BROKEN)
    (tmp_path / "broken_parts.py").write_text(PARTS)

    done = process(*command, *debug)

    assert done.returncode != 0
    for line, text in ((5, 'price = read("price")'), (3, "return {}[name]")):
        assert f'broken_parts.py", line {line}, in ' in done.stderr
        assert f"    {text}\n" in done.stderr
    assert 'broken_shop.py", line 3, in <module>' in done.stderr
    assert "KeyError: 'price'\n" in done.stderr
    if not debug:
        assert "importlib" not in done.stderr
        assert "site-packages" not in done.stderr
        assert "/palermo/" not in done.stderr


def test_a_module_with_a_syntax_error_shows_the_line_with_a_mark(process: Process, tmp_path: Path) -> None:
    (tmp_path / "torn_shop.py").write_text("import palermo\n\ndef bill(:\n")

    done = process("worker", "torn_shop")

    assert 'torn_shop.py", line 3' in done.stderr
    assert "^" in done.stderr
    assert "importlib" not in done.stderr


def test_a_module_that_does_not_exist_is_said_in_one_line(process: Process) -> None:
    (line,) = process("worker", "no_shop").stderr.splitlines()

    assert "No module named 'no_shop'. Start in the folder that holds it, or install it" in line


def test_a_queue_that_no_job_declares_is_warned_of_and_served(process: Process, shop: str) -> None:
    done = process("worker", shop, "-q", "pictrues,bills,file_*", "--burst")

    assert done.returncode == 0
    [warning] = [line for line in done.stderr.splitlines() if "no job of these modules" in line]
    assert "queue=pictrues Did you mean 'pictures'?" in warning
    assert "bills" not in warning


def test_one_job_at_a_time_for_each_processor(process: Process, shop: str) -> None:
    done = process("worker", shop, "-c", "auto", "--burst")

    assert f"slots={usable_processors()} " in done.stderr


@pytest.mark.parametrize(
    ("quota", "processors"), [("150000 100000", 2), ("1000 100000", 1), ("max 100000", None), ("", None)]
)
def test_the_processors_of_a_container_are_those_it_has_time_for(
    tmp_path: Path, quota: str, processors: int | None
) -> None:
    (tmp_path / "cpu.max").write_text(quota)

    most = usable_processors(tmp_path / "none")
    assert usable_processors(tmp_path / "cpu.max") == (most if processors is None else min(most, processors))
