"""The job that the demo enqueues, on files that are sound and on those that are shipped broken."""

import gc
import logging
import warnings
from pathlib import Path

import pytest

from palermo.demo.jobs import Parsed, around_process, parse
from palermo.demo.steps import BAD_ENCODING, damaged_files

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


def test_every_damaged_file_fails_in_its_own_way() -> None:
    files = {path.name.removesuffix(".py.txt"): path for path in damaged_files()}

    assert files.keys() == ERRORS.keys()
    for name, (error, text) in ERRORS.items():
        with pytest.raises(error, match=text):
            parse(str(files[name]))


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
