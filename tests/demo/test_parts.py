"""What the demo is made of: the files that it parses, the job that parses them, and what is printed of it."""

import gc
import io
import logging
import warnings
from pathlib import Path

import pytest
from rich.console import Console

from palermo.demo.jobs import Parsed, around_process, parse
from palermo.demo.screen import Screen, per_second, shortened
from palermo.demo.steps import BAD_ENCODING, DAMAGED, damaged_files, interleave, stdlib_files, stdlib_root

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
    declared.write_bytes("# -*- coding: latin-1 -*-\ntext = 'caffè'\n".encode("latin-1"))

    assert parse(str(BAD_ENCODING), encoding="latin-1").functions == 1
    assert parse(str(declared)).functions == 0


def test_nodes_and_functions_are_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "small.py"
    path.write_text("def one(): '\\d'\nasync def two(): pass\n")
    caplog.set_level(logging.INFO, "palermo.demo")

    with warnings.catch_warnings(record=True) as shown:
        found = parse(str(path))

    assert found == Parsed(nodes=8, functions=2)  # a module; two functions, each with its arguments and its line
    assert [f"path={path}" in line and "functions=2" in line for line in caplog.messages] == [True]
    assert shown == []


def test_the_garbage_collector_works_again_after_a_job_that_failed() -> None:
    hook = around_process("x.py")

    next(hook)
    within = gc.isenabled()
    with pytest.raises(SyntaxError):
        hook.throw(SyntaxError())

    assert not within
    assert gc.isenabled()


def test_the_standard_library_is_found_without_installed_packages() -> None:
    files = stdlib_files()

    assert {stdlib_root() / "ast.py", stdlib_root() / "json" / "decoder.py"} <= set(files)
    assert not [path for path in files if {"site-packages", "dist-packages"} & set(path.parts)]
    assert (stdlib_files(5), stdlib_files(0)) == (files[:5], [])


@pytest.mark.parametrize(("few", "many"), [(3, 100), (10, 3), (3, 0), (0, 3), (2, 9)])
def test_few_files_are_spread_among_many(few: int, many: int) -> None:
    rare = [Path(f"rare{number}") for number in range(few)]
    common = [Path(f"common{number}") for number in range(many)]

    mixed = interleave(rare, common)

    assert [path for path in mixed if path in common] == common
    assert [path for path in mixed if path in rare] == rare
    assert len(mixed) == few + many
    if (few, many) == (2, 9):
        assert [mixed.index(path) for path in rare] == [3, 7]


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def screen(out: io.StringIO) -> Screen:
    return Screen(Console(file=out, highlight=False))


def test_a_long_command_stays_on_one_line_to_be_copied(screen: Screen, out: io.StringIO) -> None:
    screen.command("palermo failed list --url sqlite:///" + "x" * 200, "what is there")

    assert out.getvalue().count("\n") == 1


def test_a_group_of_failed_jobs_is_a_row_with_an_example(screen: Screen, out: io.StringIO) -> None:
    groups = [
        {"count": 12, "error": "SyntaxError", "message": "invalid syntax", "id": "1"},
        {"count": 1, "error": "TabError", "message": None, "id": "2"},
    ]

    screen.groups(groups, lambda group: f"file{group['id']}.py")

    _, *rows = (line.split() for line in out.getvalue().splitlines())
    assert rows == [["12", "SyntaxError", "file1.py", "invalid", "syntax"], ["1", "TabError", "file2.py"]]


def test_the_text_of_a_job_cannot_drive_the_terminal(screen: Screen, out: io.StringIO) -> None:
    screen.line("[bold]\x1b[2J")
    screen.traceback("Error: \x1b]0;title\x07")

    assert "[bold]" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_progress_is_a_bar_on_a_terminal_and_few_lines_elsewhere(screen: Screen, out: io.StringIO) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, force_interactive=True, width=100, color_system=None)

    for each in (screen, Screen(terminal)):
        with each.progress(1_000) as tell:
            for done in range(1_000):
                tell(done + 1, 3)

    assert len(out.getvalue().splitlines()) <= 1
    assert "1000/1000" in shown.getvalue()
    assert "3 failed" in shown.getvalue()


def test_a_traceback_is_shortened_and_a_rate_needs_some_time() -> None:
    lines = shortened("\n".join(["Traceback", *map(str, range(30)), "Error"]))

    assert lines[:3] == ["Traceback", "  …", "22"]
    assert lines[-1] == "Error"
    assert shortened("Traceback\n  file\nError\n") == ["Traceback", "  file", "Error"]
    assert (per_second(5, 0.0), per_second(3_000, 2.0)) == ("0 jobs/s", "1,500 jobs/s")
