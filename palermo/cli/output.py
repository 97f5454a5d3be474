"""Output of the commands: tables, JSON, notes, progress and questions.

Only rows go to stdout, and everything else to stderr, so that pipes get only rows. Progress is a bar on a terminal, and
an occasional line elsewhere.
"""

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import click

from palermo.cli.command_group import misuse, note
from palermo.contract.rows import Row
from palermo.contract.sweep import SweepProgress
from palermo.core.text import count, one_line, shown

#: Minimum number of seconds between two plain lines of progress.
_EVERY = 2.0

#: Minimum width of a table's last column on a terminal, where it may wrap.
_LAST = 20

#: A column: its heading, and its value for a row.
Column = tuple[str, Callable[[Row], object]]


def field(heading: str, name: str | None = None) -> Column:
    """Return a column for the field `name`, which defaults to the heading in lower case."""
    key = name or heading.lower()
    return heading, lambda row: row[key]


def print_json(value: Any) -> None:
    """Print a value as JSON, an array with one row per line so that it is never in memory as one text."""
    ascii_only = "utf" not in (sys.stdout.encoding or "").lower()
    encoder = json.JSONEncoder(ensure_ascii=ascii_only, allow_nan=False)
    if not isinstance(value, list):
        click.echo(encoder.encode(value))
        return
    separator = "["
    for item in value:
        click.echo(separator + "\n" + encoder.encode(item), nl=False)
        separator = ","
    click.echo("[]" if not value else "\n]")


def wants_json() -> bool:
    """Whether the running command was given `--json`."""
    return bool(click.get_current_context().obj.as_json)


def printed_json(value: Any) -> bool:
    if wants_json():
        print_json(value)
    return wants_json()


def print_rows(rows: Sequence[Row], columns: Sequence[Column], *, none: str) -> None:
    """Print the rows as a table or as JSON. If there are none, print `none` on stderr.

    If the terminal is too narrow for the table, each row becomes a paragraph, because an id split over two lines can't
    be copied.
    """
    if printed_json(list(rows)):
        return
    if not rows:
        note(none)
        return
    headings = [heading for heading, _ in columns]
    lines = [headings, *([shown(value(row)) for _, value in columns] for row in rows)]
    numeric = [all(isinstance(value(row), int) for row in rows) for _, value in columns]
    *widths, last = (max(map(len, column)) for column in zip(*lines, strict=True))
    terminal = shutil.get_terminal_size().columns
    if is_terminal(sys.stdout) and sum(width + 2 for width in widths) + min(last, _LAST) > terminal:
        for line in lines[1:]:
            pairs = (f"{heading}: {cell}" for heading, cell in zip(headings, line, strict=True) if cell)
            text = textwrap.fill("  ".join(pairs), terminal, break_long_words=False, break_on_hyphens=False)
            click.echo(f"{text}\n")
        return
    for nth, line in enumerate(lines):
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, (*widths, last), numeric, strict=True)
        )
        # click drops the style if stdout isn't a terminal.
        click.secho("  ".join(padded).rstrip(), bold=nth == 0)


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def confirm(question: Callable[[], str], *, yes: bool, warning: str = "") -> None:
    """Ask for confirmation, and exit unless the answer is yes. Without a terminal, `--yes` is required.

    `question` is called only if its text can be shown; no question is asked if it returns "". `warning` is printed
    before the question.
    """
    if yes:
        return
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        why = warning or "this command asks for confirmation, but there is no terminal"
        raise misuse(f"{one_line(why).rstrip('.')}; add --yes")
    text = question()
    if text and not click.confirm(one_line(f"{warning} {text}".strip()), err=True):
        note("nothing done.")
        raise click.exceptions.Exit(1)


@contextmanager
def progress(verb: str, of: str = "") -> Iterator[Callable[[SweepProgress], None]]:
    """Show a sweep's progress on stderr.

    `of` names the things that are read, if they aren't jobs.
    """
    if is_terminal(sys.stderr):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            task = bars.add_task(verb, total=None)
            yield lambda swept: bars.update(task, completed=swept.seen, total=swept.total)
        return
    last = time.monotonic()

    def line(swept: SweepProgress) -> None:
        nonlocal last
        if time.monotonic() - last < _EVERY:
            return
        last = time.monotonic()
        if of:
            note(f"{verb}: {swept.seen:,} of {swept.total:,} {of}")
        else:
            done = swept.moved + swept.removed
            note(f"{verb}: checked {swept.seen:,} of {count(swept.total, 'job')}, took {done:,}")

    yield line


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one per line, aligned."""
    lines = [(name, shown(value)) for name, value in facts if value is not None]
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        click.echo(f"{name.ljust(width)}  {value}".rstrip())
