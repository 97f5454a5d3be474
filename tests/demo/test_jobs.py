"""The job that the demo enqueues, on files that are sound and on those that are shipped broken."""

import gc
import logging
import warnings
from pathlib import Path

import pytest

from palermo.demo.jobs import Parsed, around_process, parse
from palermo.demo.steps import BAD_ENCODING, DAMAGED, damaged_files


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("bad_encoding", UnicodeDecodeError, "can't decode byte 0xe8"),
        ("lost_indent", IndentationError, "expected an indented block"),
        ("merge_conflict", SyntaxError, "invalid syntax"),
        ("mixed_tabs", TabError, "inconsistent use of tabs"),
        ("null_bytes", (SyntaxError, ValueError), "null bytes"),  # which one depends on the Python
        ("python_2", SyntaxError, "Missing parentheses"),
        ("truncated", SyntaxError, "never closed"),
        ("unbalanced_bracket", SyntaxError, "does not match"),
        ("unknown_encoding", SyntaxError, "klingon"),
        ("web_page", SyntaxError, "invalid syntax"),
    ],
)
def test_a_damaged_file_fails_in_its_own_way(
    name: str, error: type[Exception] | tuple[type[Exception], ...], text: str
) -> None:
    with pytest.raises(error, match=text):
        parse(str(DAMAGED / f"{name}.py.txt"))


def test_every_damaged_file_fails() -> None:
    for path in damaged_files():
        with pytest.raises((SyntaxError, ValueError)):
            parse(str(path))


def test_the_file_in_another_encoding_parses_once_that_is_said() -> None:
    found = parse(str(BAD_ENCODING), encoding="latin-1")

    assert found.functions == 1


def test_nodes_and_functions_are_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "small.py"
    path.write_text("def one(): pass\nasync def two(): pass\n")
    caplog.set_level(logging.INFO, "palermo.demo")

    found = parse(str(path))

    assert found == Parsed(nodes=7, functions=2)  # a module; two functions, each with its arguments and its pass
    assert caplog.messages == [f"parsed path={path} nodes=7 functions=2"]


def test_what_a_file_declares_is_its_encoding(tmp_path: Path) -> None:
    path = tmp_path / "declared.py"
    path.write_bytes("# -*- coding: latin-1 -*-\ntext = 'caffè'\n".encode("latin-1"))

    assert parse(str(path)).functions == 0


def test_warnings_about_a_file_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "escape.py"
    path.write_text("pattern = '\\d'\n")

    with warnings.catch_warnings(record=True) as seen:
        parse(str(path))

    assert seen == []


def test_the_garbage_collector_works_again_after_a_job_that_failed() -> None:
    hook = around_process("x.py")

    next(hook)
    within = gc.isenabled()
    with pytest.raises(SyntaxError):
        hook.throw(SyntaxError())

    assert not within
    assert gc.isenabled()
