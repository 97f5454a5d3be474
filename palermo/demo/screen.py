"""The demo's output: rich on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from palermo.contract.rows import Row
from palermo.core.text import count, one_line, safe

#: Seconds between plain lines of progress.
_PLAIN_LINE_EVERY = 1.0

#: Number of displayed lines of a traceback: at its start, and at its end with the error.
_HEAD, _TAIL = 1, 9

#: Called with the number of jobs that have run and that have failed.
ShowProgress = Callable[[int, int], None]


class Screen:
    """Prints the steps of the demo."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def step(self, text: str) -> None:
        """Print the heading of a step."""
        self._print(Text(f"\n{one_line(text)}", style="bold"))

    def line(self, text: str, *, style: str = "") -> None:
        self._print(Text(f"  {one_line(text)}", style=style))

    def command(self, text: str, meaning: str = "") -> None:
        """Print a command that does the same or is worth trying, and its purpose."""
        self._print(
            Text.assemble("  ", ("$ ", "dim"), (safe(text), "cyan"), (f"   {meaning}" if meaning else "", "dim"))
        )

    def facts(self, facts: Sequence[tuple[str, object]]) -> None:
        """Print names and values, one per line."""
        width = max(len(name) for name, _ in facts)
        for name, value in facts:
            self._print(Text.assemble("  ", (name.ljust(width), "dim"), f"  {one_line(str(value))}"))

    def traceback(self, text: str) -> None:
        """Print a traceback without its middle part."""
        for line in shortened(text):
            self._print(Text(f"    {safe(line)}", style="dim"))

    def groups(self, groups: Sequence[Row], example: Callable[[Row], str]) -> None:
        """Print groups of failures: their number, error, an example file and its message."""
        rows = [(str(group["count"]), group["error"] or "", example(group), group["message"] or "") for group in groups]
        table = [("jobs", "error", "for example", "message"), *rows]
        first, second, third = (max(len(row[column]) for row in table) for column in range(3))
        for nth, (number, error, name, message) in enumerate(table):
            text = f"  {number.rjust(first)}  {error.ljust(second)}  {name.ljust(third)}  {message}"
            self._print(Text(safe(text), style="" if nth else "dim"), cut=True)

    @contextmanager
    def progress(self, total: int) -> Iterator[ShowProgress]:
        """Show the progress of the jobs: a bar on a terminal, otherwise a line every second."""
        with self._bar(total) if self._console.is_interactive else self._lines(total) as tell:
            yield tell

    @contextmanager
    def _bar(self, total: int) -> Iterator[ShowProgress]:
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("[red]{task.fields[failed]} failed"),
            TimeElapsedColumn(),
        )
        started = time.monotonic()
        with Progress(TextColumn(" "), *columns, console=self._console, transient=True) as bars:
            task = bars.add_task("", total=total, rate="", failed=0)

            def tell(done: int, failed: int) -> None:
                rate = per_second(done, time.monotonic() - started)
                bars.update(task, completed=min(done, total), rate=rate, failed=failed)

            yield tell

    @contextmanager
    def _lines(self, total: int) -> Iterator[ShowProgress]:
        started = last = time.monotonic()

        def tell(done: int, failed: int) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _PLAIN_LINE_EVERY:
                last = now
                self.line(f"{done:,} of {count(total, 'job')}, {per_second(done, now - started)}, {failed:,} failed")

        yield tell

    def _print(self, text: Text, *, cut: bool = False) -> None:
        if cut and self._console.is_terminal:
            self._console.print(text, no_wrap=True, overflow="ellipsis")
        else:
            # Soft wrap, because a command with an inserted line break couldn't be copied.
            self._console.print(text, soft_wrap=True)


def per_second(done: int, seconds: float) -> str:
    """Format a rate, for example `140 jobs/s`."""
    return f"{done / seconds if seconds > 0 else 0.0:,.0f} jobs/s"


def shortened(traceback: str) -> list[str]:
    """Return the lines of a traceback, with "…" for the middle part."""
    lines = traceback.rstrip().splitlines()
    return lines if len(lines) <= _HEAD + _TAIL + 1 else [*lines[:_HEAD], "  …", *lines[-_TAIL:]]
