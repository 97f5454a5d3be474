"""What the demo is made of: the files that it parses, the job that parses them, and what is printed of it."""

import gc
import io
from pathlib import Path

import pytest
from rich.console import Console

from palermo.demo.jobs import Parsed, around_process, parse
from palermo.demo.screen import Screen
from palermo.demo.steps import BAD_ENCODING, DAMAGED, damaged_files

#: How each of the damaged files fails.
ERRORS: dict[str, tuple[type[Exception] | tuple[type[Exception], ...], str]] = {
    "bad_encoding": (UnicodeDecodeError, "can't decode byte 0xe8"),
    "lost_indent": (IndentationError, "expected an indented block"),
    "merge_conflict": (SyntaxError, "invalid syntax"),
    "mixed_tabs": (TabError, "inconsistent use of tabs"),
    "null_bytes": ((SyntaxError, ValueError), "null bytes"),  # which one depends on the Python
    "python_2": (SyntaxError, "Missing parentheses"),
    "truncated": (SyntaxError, "never closed"),
    "unbalanced_bracket": (SyntaxError, "does not match"),
    "unknown_encoding": (SyntaxError, "klingon"),
    "web_page": (SyntaxError, "invalid syntax"),
}


def test_every_damaged_file_fails_in_its_own_way_and_is_no_module() -> None:
    files = {path.name.removesuffix(".py.txt"): path for path in damaged_files()}

    assert files.keys() == ERRORS.keys()
    for name, (error, text) in ERRORS.items():
        with pytest.raises(error, match=text):
            parse(str(files[name]))
    assert not list(DAMAGED.glob("*.py"))


def test_a_file_in_another_encoding_parses_once_that_is_said(tmp_path: Path) -> None:
    declared = tmp_path / "declared.py"
    declared.write_bytes("# -*- coding: latin-1 -*-\nasync def text(): 'caffè\\d'\n".encode("latin-1"))

    assert parse(str(BAD_ENCODING), encoding="latin-1").functions == 1
    assert parse(str(declared)) == Parsed(nodes=5, functions=1)


def test_the_garbage_collector_works_again_after_a_job_that_failed() -> None:
    hook = around_process("x.py")

    next(hook)
    within = gc.isenabled()
    with pytest.raises(SyntaxError):
        hook.throw(SyntaxError())

    assert not within
    assert gc.isenabled()


def test_progress_is_a_bar_on_a_terminal_and_no_text_of_a_job_drives_it() -> None:
    out, shown = io.StringIO(), io.StringIO()
    screen = Screen(Console(file=out, highlight=False))
    terminal = Console(file=shown, force_terminal=True, force_interactive=True, width=100, color_system=None)

    for each in (screen, Screen(terminal)):
        with each.progress(1_000) as tell:
            for done in range(1_000):
                tell(done + 1, 3)
    assert len(out.getvalue().splitlines()) <= 1
    assert ("1000/1000" in shown.getvalue(), "3 failed" in shown.getvalue()) == (True, True)

    screen.line("[bold]\x1b[2J")
    screen.traceback("Error: \x1b]0;title\x07")
    assert ("[bold]" in out.getvalue(), "\x1b" in out.getvalue()) == (True, False)
