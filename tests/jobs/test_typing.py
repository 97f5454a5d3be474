"""A type checker sees the job's own parameters on `enqueue`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import palermo
from palermo.contract.recurring import MISSED
from palermo.core.backoff import NAMED_BACKOFFS
from palermo.core.unique_keys import Mode
from palermo.core.unique_rules import ON_DUPLICATE
from palermo.jobs import options

TYPED = Path(__file__).parent / "typed"
REPOSITORY = Path(__file__).parents[2]


def mypy(path: Path, config: Path, cache: Path) -> set[int]:
    """The lines of the file in which mypy finds an error."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(cache), str(path)]
    run = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, "MYPYPATH": str(REPOSITORY)}, capture_output=True, text=True
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    errors = [line.removeprefix(f"{path}:") for line in run.stdout.splitlines() if ": error:" in line]
    assert all(line[0].isdigit() for line in errors), run.stdout
    return {int(line.partition(":")[0]) for line in errors}


def test_mypy_sees_the_parameters_of_functions_and_of_classes(tmp_path: Path) -> None:
    sample = TYPED / "sample.py"
    wrong = {number for number, line in enumerate(sample.read_text().splitlines(), 1) if line.endswith("# wrong")}

    assert mypy(sample.relative_to(REPOSITORY), TYPED / "mypy.ini", tmp_path) == wrong


def test_the_base_class_does_without_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n")
    sample = tmp_path / "sample.py"
    sample.write_text(
        "import palermo\n"
        "@palermo.job\n"
        "class Mail(palermo.JobClass):\n"
        "    def process(self, to: str) -> None: ...\n"
        "Mail.enqueue('a@b.c')\n"
        "Mail.enqueue(3)\n"
        "Mail.options(queue='x').enqueue('a', 'b')\n"
        "@palermo.job\n"
        "class Length(palermo.JobClass):\n"
        "    async def process(self, text: str) -> int:\n"
        "        return len(text)\n"
        "length: int = Length.enqueue('a').result()\n"
        "text: str = Length.enqueue('a').result()\n"
        "later: str = Length.options(delay=3).enqueue('a').result()\n"
        "many: list[palermo.Job[int]] = Length.enqueue_many([('a',)])\n"
    )

    assert mypy(sample, tmp_path / "mypy.ini", tmp_path) == {6, 7, 13, 14}


def test_the_words_of_options_in_the_types_are_those_that_are_accepted() -> None:
    assert get_args(options.OnDuplicate) == ON_DUPLICATE
    assert set(get_args(options.Unique)) == {Mode.START, Mode.DONE}
    assert set(get_args(options.BackoffName)) == set(NAMED_BACKOFFS)
    assert set(get_args(options.Missed)) == set(MISSED)


def test_dir_shows_what_users_may_use_and_nothing_else() -> None:
    assert [name for name in dir(palermo) if not name.startswith("__")] == sorted(palermo.__all__)
    assert "__version__" in dir(palermo)
