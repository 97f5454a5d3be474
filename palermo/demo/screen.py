"""The demo's output: rich on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from palermo.contract.rows import Row
from palermo.core.text import count, one_line, safe

#: Seconds between two plain lines of progress.
_PLAIN_LINE_EVERY = 1.0

#: Lines of a traceback that are shown: its head, and its end where the error is.
_HEAD, _TAIL = 1, 9

#: A function that gets how many jobs have run, and how many of them have failed.
ShowProgress = Callable[[int, int], None]


class Screen:
    """Prints the steps of the demo."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def step(self, text: str) -> None:
        """Print the heading of a step."""
        self._print(Text(f"\n{one_line(text)}", style="bold"))

    def line(self, text: str, *, style: str = "") -> None:
        """Print one line."""
        self._print(Text(f"  {one_line(text)}", style=style))

    def command(self, text: str, meaning: str = "") -> None:
        """Print a command that does the same, or that the user may try, and what it is for."""
        self._print(
            Text.assemble("  ", ("$ ", "dim"), (safe(text), "cyan"), (f"   {meaning}" if meaning else "", "dim"))
        )

    def facts(self, facts: Sequence[tuple[str, object]]) -> None:
        """Print names and values, one a line."""
        width = max(len(name) for name, _ in facts)
        for name, value in facts:
            self._print(Text.assemble("  ", (name.ljust(width), "dim"), f"  {one_line(str(value))}"))

    def traceback(self, text: str) -> None:
        """Print a traceback without its middle."""
        for line in shortened(text):
            self._print(Text(f"    {safe(line)}", style="dim"))

    def groups(self, groups: Sequence[Row], example: Callable[[Row], str]) -> None:
        """Print failures by kind: how many, the error, the name of one file, and the error's message."""
        rows = [(str(group["count"]), group["error"] or "", example(group), group["message"] or "") for group in groups]
        table = [("jobs", "error", "for example", "message"), *rows]
        first, second, third = (max(len(row[column]) for row in table) for column in range(3))
        for nth, (number, error, name, message) in enumerate(table):
            text = f"  {number.rjust(first)}  {error.ljust(second)}  {name.ljust(third)}  {message}"
            self._print(Text(safe(text), style="" if nth else "dim"), cut=True)

    @contextmanager
    def progress(self, total: int) -> Iterator[ShowProgress]:
        """Show how far the jobs are: a bar on a terminal, a line every second elsewhere."""
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
            # Soft wrapped: a command with a line break from here in it could not be copied.
            self._console.print(text, soft_wrap=True)


def per_second(done: int, seconds: float) -> str:
    """`140 jobs/s`."""
    return f"{done / seconds if seconds > 0 else 0.0:,.0f} jobs/s"


def shortened(traceback: str) -> list[str]:
    """The lines of a traceback, with "…" for its middle."""
    lines = traceback.rstrip().splitlines()
    return lines if len(lines) <= _HEAD + _TAIL + 1 else [*lines[:_HEAD], "  …", *lines[-_TAIL:]]
