"""`palermo top`: a live view of queues, workers, rates and recent failures that fills the terminal.

Keys choose a queue, pause or resume it, requeue its failed jobs, and filter the view.
"""

import os
import re
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

import click
from msgspec import Struct, field
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from palermo.cli.command_group import Context
from palermo.cli.options import query_options
from palermo.cli.output import is_terminal, printed_json, wants_json
from palermo.contract import clock
from palermo.contract.journal import ReadFrom
from palermo.contract.rows import Row, iso_instant
from palermo.core.failure import printable
from palermo.core.journal_records import RecordBatch, RecordKind
from palermo.core.text import count, duration, exactly, one_line, shorter
from palermo.core.times import parse_instant
from palermo.core.topology import is_failed
from palermo.errors import BrokerError, PalermoError
from palermo.history.journal_reader import JournalFollower
from palermo.history.statistics import Rates, Statistics
from palermo.inspector.inspector import Inspector
from palermo.inspector.rates import Samples
from palermo.settings.settings import Settings
from palermo.views.filter import JobFilter

#: Lines of the screen that aren't rows (the first line, a blank one and the last one), and such lines of each table
#: (its name, heading, rule and a blank line).
_FIXED, _FRAME = 3, 4

#: Minimum number of rows in a table, even on a small terminal.
_FEWEST = 2

#: Minimum terminal width for all columns.
_WIDE = 80

#: Maximum age of displayed failures in seconds, and their maximum number.
_RECENT, _FAILURES = 3_600.0, 100

#: Height of a view that is printed once. `--json` isn't limited.
_ONCE = 40

#: Rates are averages over this many seconds.
_RATE_WINDOW = 10.0

#: Maximum seconds to wait for the journal before printing a view once.
_JOURNAL_TIMEOUT = 5.0

_TEXTS = ("id", "job", "queue", "error", "message")


class ScreenData(Struct, frozen=True, kw_only=True):
    """The contents of one view."""

    #: Unix seconds.
    at: float
    #: The broker's URL without the password.
    broker: str
    queues: Sequence[Row] = ()
    workers: Sequence[Row] = ()
    #: Jobs per second.
    processed: float | None = None
    failed: float | None = None
    rates: dict[str, Rates] = field(default_factory=dict)
    #: The newest failures, newest first: `at`, `job`, `queue`, `error`, `message`, `id`, `retried`.
    failures: Sequence[Row] = ()
    #: Why the data is outdated or incomplete; "" if it is neither.
    problem: str = ""
    #: The queue chosen with the keys, or "".
    chosen: str = ""

    def only(self, text: str) -> "ScreenData":
        """Only the queues with this text in their names, and related workers and failures."""
        if not text:
            return self
        return replace(
            self,
            queues=[row for row in self.queues if text in row["name"]],
            workers=[row for row in self.workers if any(text in each["job"] + each["queue"] for each in row["jobs"])],
            failures=[row for row in self.failures if any(text in row[name] for name in _TEXTS)],
        )

    def row(self) -> Row:
        """Return the data in the form of `--json`."""
        return {
            "at": iso_instant(self.at),
            **totals(self),
            "processed_rate": self.processed,
            "failed_rate": self.failed,
            "queues": [
                {**row, "in_rate": rates and rates.enqueued, "out_rate": rates and rates.ended}
                for row in self.queues
                for rates in (self.rates.get(row["name"]),)
            ],
            "workers": list(self.workers),
            "failures": [{**row, "at": iso_instant(row["at"])} for row in self.failures],
        }


def totals(data: ScreenData) -> dict[str, int]:
    """Sum up all queues and workers."""
    jobs = [row for row in data.queues if not is_failed(row["name"])]
    return {
        "pending": sum(row["pending"] for row in jobs),
        "in_progress": sum(row["in_progress"] for row in jobs),
        "failed": sum(row["pending"] for row in data.queues if is_failed(row["name"])),
        "slots": sum(row["slots"] or 0 for row in data.workers),
        "busy": sum(len(row["jobs"]) for row in data.workers),
    }


# -- the tables


class _Column(Struct, frozen=True):
    heading: str
    cell: Callable[[ScreenData, Row], str | Text]
    number: bool = False
    #: Whether long cells may be cut.
    long: bool = False
    #: Whether narrow terminals omit the column.
    wide: bool = False


def _of_jobs(value: Callable[[ScreenData, Row], str]) -> Callable[[ScreenData, Row], str]:
    """Return a cell function that shows nothing for queues of failed jobs."""
    return lambda data, row: "" if is_failed(row["name"]) else value(data, row)


def _queue_state(data: ScreenData, row: Row) -> Text:
    if row["paused"]:
        return Text("paused", style="yellow")
    unserved = row["pending"] and not row["workers"] and not is_failed(row["name"]) and not data.problem
    return Text("no worker" if unserved else "", style="yellow")


def _works_on(data: ScreenData, row: Row) -> str:
    jobs = sorted(row["jobs"], key=lambda job: job["started_at"] or "")
    if not jobs:
        return ""
    first, started = jobs[0], jobs[0]["started_at"]
    arguments = f"({one_line(first['preview'])})" if first["preview"] else ""
    since = duration(max(0.0, round(data.at - parse_instant(started), 1))) if started else ""
    return f"{one_line(first['job'])}{arguments} {since}" + (f" and {len(jobs) - 1} more" if len(jobs) > 1 else "")


def _number(number: int | None) -> str:
    """A worker's number as text; "?" if the worker didn't answer and the number is unknown."""
    return "?" if number is None else f"{number:,}"


def _rate(per_second: float | None) -> str:
    if per_second is None:
        return "–"
    return f"{per_second:,.0f}" if per_second >= 10 or not per_second else f"{per_second:.1f}"


def _rate_of(name: str) -> Callable[[ScreenData, Row], str]:
    return _of_jobs(lambda data, row: _rate(getattr(data.rates.get(row["name"]), name, None)))


def _red(text: str, value: object) -> Text:
    return Text(text, style="red" if value else "")


_STATES = {"working": "cyan", "idle": "green"}

_QUEUES = (
    _Column("Queue", lambda data, row: one_line(row["name"]), long=True),
    _Column(
        "Waiting", lambda data, row: _red(f"{row['pending']:,}", is_failed(row["name"]) and row["pending"]), number=True
    ),
    _Column("In progress", _of_jobs(lambda data, row: f"{row['in_progress']:,}"), number=True),
    _Column("In/s", _rate_of("enqueued"), number=True, wide=True),
    _Column("Out/s", _rate_of("ended"), number=True, wide=True),
    _Column("Workers", _of_jobs(lambda data, row: f"{row['workers']:,}"), number=True),
    _Column("", _queue_state),
)

_WORKERS = (
    _Column("Worker", lambda data, row: one_line(row["id"]), long=True),
    _Column("State", lambda data, row: Text(row["state"], style=_STATES.get(row["state"], "yellow"))),
    _Column("Busy", lambda data, row: f"{len(row['jobs'])}/{_number(row['slots'])}", number=True),
    _Column("Processed", lambda data, row: _number(row["processed"]), number=True, wide=True),
    _Column("Failed", lambda data, row: _red(_number(row["failed"]), row["failed"]), number=True),
    _Column("Works on", _works_on, long=True),
)

_NEWEST = (
    _Column("At", lambda data, row: _clock_time(row["at"])),
    _Column("Queue", lambda data, row: one_line(row["queue"]), long=True, wide=True),
    _Column("Job", lambda data, row: one_line(row["job"]), long=True),
    _Column("", lambda data, row: Text("retries", style="yellow") if row["retried"] else Text("failed", style="red")),
    _Column("Error", lambda data, row: shorter(one_line(f"{row['error']}: {row['message']}"), 200), long=True),
)


def _clock_time(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def _table(data: ScreenData, columns: Sequence[_Column], rows: Sequence[Row], width: int) -> Table:
    """Return a table of this width. Long texts are cut, and a narrow table omits some columns."""
    shown = [column for column in columns if width >= _WIDE or not column.wide]
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for column in shown:
        # rich narrows only columns that may wrap. The cells themselves never wrap.
        justify: Literal["left", "right"] = "right" if column.number else "left"
        table.add_column(column.heading, justify=justify, no_wrap=not column.long, min_width=len(column.heading))
    for row in rows:
        style = "reverse" if data.chosen and row.get("name") == data.chosen else ""
        table.add_row(*(_text(column.cell(data, row)) for column in shown), style=style)
    return table


def _text(cell: str | Text) -> Text:
    text = cell if isinstance(cell, Text) else Text(cell)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


# -- the screen


def queue_order(data: ScreenData) -> list[Row]:
    """Return the queues in display order, longest first."""
    return sorted(data.queues, key=lambda row: (-row["pending"] - row["in_progress"], row["name"]))


def view(data: ScreenData, *, width: int, height: int | None = None, foot: str = "") -> RenderableType:
    """Render the screen, in full or up to `height` lines; `foot` is its last line."""
    workers = sorted(data.workers, key=lambda row: (-len(row["jobs"]), row["id"]))
    tables = (
        ("Queues", _QUEUES, queue_order(data)),
        ("Workers", _WORKERS, workers),
        ("Newest failures, of the last hour", _NEWEST, data.failures),
    )
    facts = _facts(data, width)
    sizes = [len(rows) for _, _, rows in tables]
    room = sizes if height is None else split_rows(sizes, height - _FIXED - len(facts) - len(tables) * _FRAME)
    title = Text.assemble(("palermo top", "bold"), f"  {_clock_time(data.at)}  {one_line(data.broker)}")
    parts: list[RenderableType] = [_text(title), *facts, _text(Text(one_line(data.problem), style="bold red"))]
    for (name, columns, rows), shown in zip(tables, room, strict=True):
        more = f", {shown:,} of {len(rows):,}" if shown < len(rows) else ""
        parts.append(_text(Text(name + more, style="bold")))
        parts.append(_table(data, columns, rows[:shown], width) if rows else Text("none", style="dim"))
        parts.append(Text())
    if foot:
        parts.append(_text(Text(foot, style="dim")))
    return Group(*parts)


def split_rows(sizes: Sequence[int], room: int) -> list[int]:
    """Divide `room` lines among tables with these numbers of rows. Each gets at least two, and unused room goes to the
    others.
    """
    given = [min(size, _FEWEST) for size in sizes]
    free = room - sum(given)
    while free > 0 and given != list(sizes):
        for nth, size in enumerate(sizes):
            if given[nth] < size and free > 0:
                given[nth] += 1
                free -= 1
    return given


def _facts(data: ScreenData, width: int) -> list[Text]:
    """Return the totals, on as many lines as they need."""
    sums = totals(data)
    facts = (
        ("waiting", f"{sums['pending']:,}", ""),
        ("in progress", f"{sums['in_progress']:,}", ""),
        ("failed", f"{sums['failed']:,}", "red" if sums["failed"] else ""),
        ("workers", f"{len(data.workers):,}", ""),
        ("slots busy", f"{sums['busy']:,} of {sums['slots']:,}", ""),
        ("processed", f"{_rate(data.processed)}/s", ""),
        ("failing", f"{_rate(data.failed)}/s", "red" if data.failed else ""),
    )
    lines = [_text("")]
    for name, value, style in facts:
        fact = Text.assemble((value, f"bold {style}".strip()), f" {name}")
        if lines[-1] and lines[-1].cell_len + 2 + fact.cell_len > width:
            lines.append(_text(""))
        lines[-1].append("  " if lines[-1] else "").append_text(fact)
    return lines


# -- the data


class LiveData:
    """Reads queues and workers from the broker, and failures and rates from the journal."""

    def __init__(self, inspector: Inspector, settings: Settings) -> None:
        now = clock.now()
        self.inspector = inspector
        self._samples = Samples(2 * _RATE_WINDOW + 120)
        self._statistics = Statistics()
        self._failures: deque[Row] = deque(maxlen=_FAILURES)
        #: Calls `take` and `reset` in its own thread.
        self.journal = JournalFollower(settings, [self, self._statistics], ReadFrom(since=now - _RECENT))
        self._data = ScreenData(at=now, broker=str(settings.address))

    def take(self, batch: RecordBatch) -> None:
        """Add the failures in a batch of journal records."""
        for record in batch.records:
            at, kind = record["at"], record["kind"]
            if kind in (RecordKind.FAILED, RecordKind.RETRIED) and at >= self._data.at - _RECENT:
                texts = {name: printable(str(record.get(name) or "")) for name in _TEXTS}
                self._failures.append({"at": at, **texts, "retried": kind == RecordKind.RETRIED})

    def reset(self) -> None:
        self._failures.clear()

    def refresh(self) -> ScreenData:
        """Read the current data. Raises BrokerError."""
        now = self.inspector.snapshot()
        self._samples.add(now)
        processed, failed = self._samples.throughput(now.at, _RATE_WINDOW)
        names = [row["name"] for row in now.queues if not is_failed(row["name"])]
        self._data = replace(
            self._data,
            at=now.at,
            queues=now.queues,
            workers=now.workers,
            processed=processed,
            failed=failed,
            rates=self._statistics.rates(names) if self.journal.progress.ready else {},
            # The reading thread may add to it.
            failures=sorted(self._failures.copy(), key=lambda row: -row["at"]),
            problem="" if now.trouble is None else now.trouble.text,
        )
        return self._data

    def refresh_or_last(self) -> ScreenData:
        """Read the current data. While the broker is unavailable, return the last data with the problem."""
        try:
            return self.refresh()
        except BrokerError as error:
            return replace(self._data, problem=f"{type(error).__name__}: {error} Trying again.")


# -- the keys


#: One key; an arrow is one key.
_KEY = re.compile("\x1b\\[[AB]|.", re.DOTALL)

#: Keys that move the choice of a queue, with the number of rows to move down.
_STEPS = {"\x1b[B": 1, "j": 1, "\x1b[A": -1, "k": -1}

_ENTER, _ESCAPE, _ERASE = "\r\n", "\x1b", "\x7f\b"

#: The last line, unless a question or a filter is displayed.
HELP = "q quits  ↑↓ queue  p pause/resume  r requeue  / filter"


class TopKeys(Struct):
    """The choices made with the keys."""

    inspector: Inspector
    queue: str = ""
    #: Only queues, jobs and errors whose names contain this are displayed.
    wanted: str = ""
    #: "typing" sends keys to the filter; "asking" takes the next key as the answer to a question.
    mode: Literal["", "typing", "asking"] = ""
    #: The result of the last key.
    outcome: str = ""

    @property
    def foot(self) -> str:
        match self.mode:
            case "typing":
                return f"filter: {one_line(self.wanted)}_  Enter keeps it, Escape removes it"
            case "asking":
                of_queue = "" if is_failed(self.queue) else f" of {one_line(self.queue)}"
                return f"requeue all failed jobs{of_queue}? y or n"
            case _:
                return self.outcome or (f"{HELP}  filter: {one_line(self.wanted)}" if self.wanted else HELP)

    def press(self, pressed: str, queues: Sequence[Row]) -> bool:
        """Handle these keys. `queues` are the displayed rows. Returns whether to quit."""
        for key in _KEY.findall(pressed):
            if self.mode == "typing":
                self._type(key)
            elif self.mode == "asking":
                self.mode = ""
                if key == "y":
                    self._change("requeue")
            elif key in "qQ":
                return True
            else:
                self.outcome = ""
                self._obey(key, queues)
        return False

    def _obey(self, key: str, queues: Sequence[Row]) -> None:
        names = [row["name"] for row in queues]
        if key == "/":
            self.mode = "typing"
        elif key in _STEPS and names:
            at = names.index(self.queue) + _STEPS[key] if self.queue in names else 0
            self.queue = names[min(max(at, 0), len(names) - 1)]
        elif key in "pr" and self.queue not in names:
            self.outcome = "choose a queue first, with ↑ or ↓"
        elif key == "p" and is_failed(self.queue):
            self.outcome = "no worker takes failed jobs, so there is nothing to pause"
        elif key == "p":
            self._change("resume" if queues[names.index(self.queue)]["paused"] else "pause")
        elif key == "r":
            self.mode = "asking"

    def _type(self, key: str) -> None:
        if key in _ENTER:
            self.mode = ""
        elif key == _ESCAPE:
            self.mode, self.wanted = "", ""
        elif key in _ERASE:
            self.wanted = self.wanted[:-1]
        elif key.isprintable():
            self.wanted += key

    def _change(self, action: Literal["pause", "resume", "requeue"]) -> None:
        try:
            if action == "requeue":
                chosen = JobFilter() if is_failed(self.queue) else JobFilter(queue=exactly(self.queue))
                self.outcome = f"requeued {count(len(self.inspector.failed.requeue(chosen)), 'job')}"
            else:
                change = self.inspector.queues.pause if action == "pause" else self.inspector.queues.resume
                change(self.queue)
                self.outcome = f"{action}d {one_line(self.queue)}"
        except PalermoError as error:
            self.outcome = f"{type(error).__name__}: {one_line(str(error))}"


# -- the command


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    help="Seconds between two refreshes.",
)
@click.option("--once", is_flag=True, help="Print one view and exit. The default without a terminal.")
@query_options
@click.pass_obj
def top(context: Context, /, interval: float, once: bool) -> None:
    """Watch queues, workers, rates and the newest failures. Press q to quit.

    Press keys to choose a queue, pause or resume it, requeue its failed jobs, and filter the view. The rates of queues
    are averages of the last two to four minutes, from the counts in the journal. The rates of all workers are averages
    of the last ten seconds, or of one interval with --once.
    """
    live_data = LiveData(context.inspector(), context.client().settings)
    click.get_current_context().call_on_close(live_data.journal.close)
    # Check for a mistyped SQLite path before the journal's client can create the file.
    live_data.refresh()
    live_data.journal.begin()
    if not (once or wants_json()) and is_terminal(sys.stdout) and is_terminal(sys.stdin):
        with _keyboard() as keyboard, suppress(KeyboardInterrupt):
            _show(live_data, TopKeys(live_data.inspector), keyboard, interval)
        return
    time.sleep(interval)
    live_data.journal.wait(_JOURNAL_TIMEOUT)
    data = live_data.refresh()
    if not printed_json(data.row()):
        console = Console(highlight=False)
        console.print(view(data, width=console.width, height=_ONCE))


def _show(live_data: LiveData, keys: TopKeys, keyboard: int, interval: float) -> None:
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            data = replace(live_data.refresh_or_last().only(keys.wanted), chosen=keys.queue)
            live.update(view(data, width=console.width, height=console.height, foot=keys.foot), refresh=True)
            if not select.select([keyboard], [], [], interval)[0]:
                continue
            # A closed terminal returns end of file.
            pressed = os.read(keyboard, 64).decode(errors="replace") or "q"
            if keys.press(pressed, queue_order(data)):
                return


@contextmanager
def _keyboard() -> Iterator[int]:
    """Return the terminal's file descriptor with unbuffered keys, and restore the terminal afterwards."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
