"""The output of the commands: tables, JSON, notes, progress and questions.

Rows go to stdout and everything else to stderr, so that a pipe holds rows alone. On a
terminal tables and progress are rich's; elsewhere they are plain aligned lines.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import click

from palermo.cli.command_group import misuse, note
from palermo.contract.rows import Row
from palermo.contract.sweep import SweepProgress
from palermo.core.text import count, one_line, shorter, shown

if TYPE_CHECKING:
    from rich.text import Text

#: The least seconds between two plain lines of progress.
_EVERY = 2.0

#: The largest width of a cell in a plain table; the last column has no limit.
_WIDTH = 60

#: The least width on a terminal of a table's last column, which is folded; and what rich puts between two columns.
_FOLDED, _BETWEEN = 20, 3

#: A column: its heading, and what it shows of a row.
Column = tuple[str, Callable[[Row], object]]


def field(heading: str, name: str | None = None) -> Column:
    """A column that shows one field of the row: `name`, or else the heading in lower case."""
    key = name or heading.lower()
    return heading, lambda row: row[key]


def print_json(value: Any) -> None:
    """Print one value as JSON: an array with one row a line, so that a long array is never in memory as one text."""
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
    """Whether the command that runs was given `--json`."""
    return bool(click.get_current_context().obj.as_json)


def printed_json(value: Any) -> bool:
    """Print the value as JSON if `--json` asks for it. Returns whether it does."""
    if wants_json():
        print_json(value)
    return wants_json()


def print_rows(rows: Sequence[Row], columns: Sequence[Column], *, none: str) -> None:
    """Print the rows as a table, or as JSON; without rows print `none` on stderr."""
    if printed_json(list(rows)):
        return
    if not rows:
        note(none)
        return
    cells = [[shown(value(row)) for _, value in columns] for row in rows]
    numeric = [all(isinstance(value(row), int) for row in rows) for _, value in columns]
    headings = [heading for heading, _ in columns]
    if is_terminal(sys.stdout):
        _rich_table(headings, cells, numeric)
    else:
        _plain_table(headings, cells, numeric)


def _rich_table(headings: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    # Text, so that brackets in a job's name are not taken for rich's markup.
    lines = [[Text(cell) for cell in line] for line in (headings, *cells)]
    *widths, last = (max(cell.cell_len for cell in column) for column in zip(*lines, strict=True))
    if sum(widths) + min(last, _FOLDED) + _BETWEEN * len(headings) > console.width:
        for line in _records(lines, console.width):
            console.print(line, soft_wrap=True)
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for n, (heading, right) in enumerate(zip(headings, numeric, strict=True)):
        # Only the last column is folded: an id over two lines cannot be copied.
        table.add_column(heading, justify="right" if right else "left", overflow="fold", no_wrap=n < len(headings) - 1)
    for row in lines[1:]:
        table.add_row(*row)
    console.print(table)


def _records(lines: "Sequence[Sequence[Text]]", width: int) -> "Iterator[Text]":
    """The rows of a table that is too wide for the terminal: the headings with their values, and a blank line."""
    from rich.text import Text

    headings, *rows = lines
    for row in rows:
        line = Text()
        for heading, cell in zip(headings, row, strict=True):
            if not cell:
                continue
            pair = Text.assemble((f"{heading}:", "bold"), " ", cell)
            if line and line.cell_len + 2 + pair.cell_len > width:
                yield line
                line = Text()
            line = Text.assemble(line, "  ", pair) if line else pair
        yield line
        yield Text()


def _plain_table(headings: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]) -> None:
    last = len(headings) - 1
    lines = [
        headings,
        *([shorter(cell, _WIDTH) if n < last else cell for n, cell in enumerate(line)] for line in cells),
    ]
    widths = [max(len(line[n]) for line in lines) for n in range(len(headings))]
    for line in lines:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        click.echo("  ".join(padded).rstrip())


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at this stream."""
    return stream.isatty()


def confirm(question: Callable[[], str], *, yes: bool, warning: str = "") -> None:
    """Ask for confirmation, and end the command unless the answer is yes. Without a terminal it requires `--yes`.

    `question` is called only where its text can be shown; an empty text is not asked. `warning` is shown before it.
    """
    if yes:
        return
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        why = warning or "this command asks for confirmation and there is no terminal to ask on"
        raise misuse(f"{one_line(why).rstrip('.')}; add --yes")
    text = question()
    if text and not click.confirm(one_line(f"{warning} {text}".strip()), err=True):
        note("nothing done.")
        raise click.exceptions.Exit(1)


@contextmanager
def progress(verb: str, of: str = "") -> Iterator[Callable[[SweepProgress], None]]:
    """Show how far a sweep is, on stderr: a bar on a terminal, a line now and then elsewhere.

    `of` names what the sweep reads, if it does not take jobs.
    """
    if is_terminal(sys.stderr):
        with _bar(verb) as show:
            yield show
        return
    last = time.monotonic()

    def line(swept: SweepProgress) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            done = swept.moved + swept.removed
            if of:
                note(f"{verb}: {swept.seen:,} of {swept.total:,} {of}")
                return
            note(f"{verb}: looked at {swept.seen:,} of {count(swept.total, 'job')}, took {done:,}")

    yield line


@contextmanager
def _bar(verb: str) -> Iterator[Callable[[SweepProgress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(verb, total=None)

        def show(swept: SweepProgress) -> None:
            bars.update(task, completed=swept.seen, total=swept.total)

        yield show


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one a line, aligned."""
    lines = [(name, shown(value)) for name, value in facts if value is not None]
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        click.echo(f"{name.ljust(width)}  {value}".rstrip())
