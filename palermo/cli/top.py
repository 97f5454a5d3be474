"""`palermo top`: a live view of queues, workers, rates and the newest failures, as large as the terminal."""

import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime

import click
from msgspec import Struct, field
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from palermo.cli.command_group import Context
from palermo.cli.options import query_options
from palermo.cli.output import is_terminal, print_json
from palermo.cli.top_keys import TopKeys
from palermo.contract import clock
from palermo.contract.journal import ReadFrom
from palermo.contract.rows import Row, iso_instant
from palermo.core.failure import printable
from palermo.core.journal_records import RecordBatch, RecordKind
from palermo.core.text import duration, one_line, shorter
from palermo.core.times import parse_instant
from palermo.core.topology import is_failed
from palermo.errors import BrokerError
from palermo.history.journal_reader import JournalFollower
from palermo.history.statistics import Rates, Statistics
from palermo.inspector.inspector import Inspector
from palermo.inspector.rates import Samples

#: Lines that are no rows: the first line, a blank and the foot, and of each table its name, its heading, a rule and a
#: blank.
_FIXED, _FRAME = 3, 4

#: Rows that a table has at least, however low the terminal is.
_LEAST = 2

#: Columns between two of a table; the most of one, and the fewest to which a text is cut.
_GAP, _MOST, _LEAST_TEXT = 3, 40, 12

#: How far back failures are shown, in seconds, and the most that are shown.
_RECENT, _FAILURES = 3_600.0, 100

#: The lines of one look that is printed; `--json` has all.
_ONCE = 40

#: Rates are measured over this many seconds before now.
_RATE_WINDOW = 10.0

#: Seconds that one snapshot waits for the journal; after that it is shown without failures.
_JOURNAL_TIMEOUT = 5.0

_TEXTS = ("id", "job", "queue", "error", "message")


class ScreenData(Struct, frozen=True, kw_only=True):
    """All that is shown at one moment."""

    #: Unix seconds.
    at: float
    #: The broker, without its password.
    broker: str
    queues: Sequence[Row] = ()
    workers: Sequence[Row] = ()
    #: Jobs a second.
    processed: float | None = None
    failed: float | None = None
    rates: dict[str, Rates] = field(default_factory=dict)
    #: The newest failures, newest first: `at`, `job`, `queue`, `error`, `message`, `id`, `retried`.
    failures: Sequence[Row] = ()
    #: Why the data are out of date or incomplete; "" if they are neither.
    problem: str = ""
    #: The queue that the keys have chosen; "" for none.
    chosen: str = ""

    def only(self, text: str) -> "ScreenData":
        """The data of queues with this in their names, and of workers and failures that have to do with it."""
        if not text:
            return self
        return replace(
            self,
            queues=[row for row in self.queues if text in row["name"]],
            workers=[row for row in self.workers if any(text in each["job"] + each["queue"] for each in row["jobs"])],
            failures=[row for row in self.failures if any(text in row[name] for name in _TEXTS)],
        )

    def row(self) -> Row:
        """The data as a row, for programs."""
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
    """The sums over all queues and workers."""
    jobs = [row for row in data.queues if not is_failed(row["name"])]
    return {
        "pending": sum(row["pending"] for row in jobs),
        "in_progress": sum(row["in_progress"] for row in jobs),
        "failed": sum(row["pending"] for row in data.queues if is_failed(row["name"])),
        "slots": sum(row["slots"] or 0 for row in data.workers),
        "busy": sum(len(row["jobs"]) for row in data.workers),
    }


def view(data: ScreenData, *, width: int, height: int | None = None, foot: str = "") -> RenderableType:
    """The screen for a terminal of this width and of `height` lines, or all of it; `foot` is its last line."""
    sizes = [len(data.queues), len(data.workers), len(data.failures)]
    facts = _facts(data, width)
    room = sizes if height is None else split_rows(sizes, height - _FIXED - len(facts) - len(sizes) * _FRAME)
    parts: list[RenderableType] = [_first_line(data), *facts, _problem(data)]
    tables = (("Queues", _queues), ("Workers", _workers), ("Newest failures, of the last hour", _failures))
    for (title, table), size, shown in zip(tables, sizes, room, strict=True):
        more = f", {shown:,} of {size:,}" if shown < size else ""
        parts.append(Text(title + more, style="bold", no_wrap=True))
        parts.append(_fitted(*table(data, shown), width) if size else Text("none", style="dim"))
        parts.append(Text())
    if foot:
        parts.append(Text(foot, style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def split_rows(sizes: Sequence[int], room: int) -> list[int]:
    """The rows of each table that fit: room that one does not need goes to the others, and each may have two."""
    given = [min(size, _LEAST) for size in sizes]
    free = room - sum(given)
    while free > 0 and given != list(sizes):
        for nth, size in enumerate(sizes):
            if given[nth] < size and free > 0:
                given[nth] += 1
                free -= 1
    return given


def _first_line(data: ScreenData) -> Text:
    at = datetime.fromtimestamp(data.at).strftime("%H:%M:%S")
    return Text.assemble(("palermo top", "bold"), f"  {at}  {one_line(data.broker)}", no_wrap=True, overflow="ellipsis")


def _facts(data: ScreenData, width: int) -> list[Text]:
    """The sums, on as many lines as they need."""
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
    lines = [Text(no_wrap=True, overflow="ellipsis")]
    for name, value, style in facts:
        fact = Text.assemble((value, f"bold {style}".strip()), f" {name}")
        if lines[-1] and lines[-1].cell_len + 2 + fact.cell_len > width:
            lines.append(Text(no_wrap=True, overflow="ellipsis"))
        lines[-1].append("  " if lines[-1] else "").append_text(fact)
    return lines


def _problem(data: ScreenData) -> Text:
    return Text(one_line(data.problem), style="bold red", no_wrap=True, overflow="ellipsis")


class _Column(Struct, frozen=True):
    """A column of a table."""

    heading: str
    number: bool = False
    #: The width to which a long text may be cut; 0 if its cells are never cut.
    least: int = 0
    #: Where the terminal is too narrow, the column with the greatest number goes first; 0 stays.
    spare: int = 0


#: The columns of a table, and its rows: the cells, and the style.
_Rows = tuple[Sequence[_Column], Sequence[tuple[Sequence[Text], str]]]


def _fitted(columns: Sequence[_Column], rows: Sequence[tuple[Sequence[Text], str]], width: int) -> Table:
    """A table as wide as the terminal at most, of rows with their styles.

    Headings are whole. Long texts are cut, and columns that the terminal has no room for are left out.
    """
    wanted = [
        max(len(column.heading), *(min(cells[nth].cell_len, _MOST) for cells, _ in rows))
        for nth, column in enumerate(columns)
    ]
    least = [max(len(column.heading), min(wanted[nth], column.least or _MOST)) for nth, column in enumerate(columns)]
    kept = list(range(len(columns)))
    while sum(least[nth] + _GAP for nth in kept) - _GAP > width:
        spared = max(kept, key=lambda nth: columns[nth].spare)
        if not columns[spared].spare:
            break
        kept.remove(spared)
    widths = {nth: least[nth] for nth in kept}
    room = width - sum(widths.values()) - _GAP * (len(kept) - 1)
    for nth in kept:
        if columns[nth].least:
            # The last column, an error or what a worker does, gets what the others leave.
            more = room if nth == len(columns) - 1 else min(room, wanted[nth] - widths[nth])
            widths[nth] += max(0, more)
            room -= max(0, more)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for nth in kept:
        justify: JustifyMethod = "right" if columns[nth].number else "left"
        table.add_column(columns[nth].heading, justify=justify, no_wrap=True, overflow="ellipsis", width=widths[nth])
    for cells, style in rows:
        table.add_row(*(cells[nth] for nth in kept), style=style)
    return table


def queue_order(data: ScreenData) -> list[Row]:
    """The queues as they are shown, the longest first."""
    return sorted(data.queues, key=lambda row: (-row["pending"] - row["in_progress"], row["name"]))


def _queues(data: ScreenData, shown: int) -> _Rows:
    columns = (
        _Column("Queue", least=_LEAST_TEXT),
        _Column("Waiting", number=True),
        _Column("In progress", number=True, spare=1),
        _Column("In/s", number=True, spare=3),
        _Column("Out/s", number=True, spare=4),
        _Column("Workers", number=True, spare=2),
        _Column(""),
    )
    rows = []
    for row in queue_order(data)[:shown]:
        rates = data.rates.get(row["name"])
        failed = is_failed(row["name"])
        cells = (
            Text(one_line(row["name"])),
            Text(f"{row['pending']:,}", style="red" if failed and row["pending"] else ""),
            Text("" if failed else f"{row['in_progress']:,}"),
            Text("" if failed else _rate(None if rates is None else rates.enqueued)),
            Text("" if failed else _rate(None if rates is None else rates.ended)),
            Text("" if failed else f"{row['workers']:,}"),
            Text("paused", style="yellow") if row["paused"] else _unserved(row, known=not failed and not data.problem),
        )
        rows.append((cells, "reverse" if row["name"] == data.chosen else ""))
    return columns, rows


def _unserved(row: Row, *, known: bool) -> Text:
    return Text("no worker", style="yellow") if row["pending"] and not row["workers"] and known else Text()


def _workers(data: ScreenData, shown: int) -> _Rows:
    columns = (
        _Column("Worker", least=_LEAST_TEXT),
        _Column("State"),
        _Column("Busy", number=True),
        _Column("Processed", number=True, spare=2),
        _Column("Failed", number=True, spare=1),
        _Column("Works on", least=_LEAST_TEXT),
    )
    rows = []
    for row in sorted(data.workers, key=lambda row: (-len(row["jobs"]), row["id"]))[:shown]:
        cells = (
            Text(one_line(row["id"])),
            Text(row["state"], style={"working": "cyan", "idle": "green"}.get(row["state"], "yellow")),
            Text(f"{len(row['jobs'])}/{_count(row['slots'])}"),
            Text(_count(row["processed"])),
            Text(_count(row["failed"]), style="red" if row["failed"] else ""),
            Text(_works_on(row, data.at)),
        )
        rows.append((cells, ""))
    return columns, rows


def _count(number: int | None) -> str:
    """A number of a worker; "?" for one that does not answer and of which it is not known."""
    return "?" if number is None else f"{number:,}"


def _works_on(row: Row, now: float) -> str:
    jobs = sorted(row["jobs"], key=lambda job: job["started_at"] or "")
    if not jobs:
        return ""
    first = jobs[0]
    more = f" and {len(jobs) - 1} more" if len(jobs) > 1 else ""
    shown = f"({one_line(first['preview'])})" if first["preview"] else ""
    return f"{one_line(first['job'])}{shown} {_since(first['started_at'], now)}{more}"


def _failures(data: ScreenData, shown: int) -> _Rows:
    columns = (
        _Column("At"),
        _Column("Queue", least=_LEAST_TEXT, spare=1),
        _Column("Job", least=_LEAST_TEXT),
        _Column(""),
        _Column("Error", least=_LEAST_TEXT),
    )
    rows = []
    for row in data.failures[:shown]:
        cells = (
            Text(datetime.fromtimestamp(row["at"]).strftime("%H:%M:%S")),
            Text(one_line(row["queue"])),
            Text(one_line(row["job"])),
            Text("retries", style="yellow") if row["retried"] else Text("failed", style="red"),
            Text(shorter(one_line(f"{row['error']}: {row['message']}"), 200)),
        )
        rows.append((cells, ""))
    return columns, rows


def _since(started: str | None, now: float) -> str:
    return "" if started is None else duration(max(0.0, round(now - parse_instant(started), 1)))


def _rate(jobs_per_second: float | None) -> str:
    if jobs_per_second is None:
        return "–"
    return f"{jobs_per_second:,.0f}" if jobs_per_second >= 10 or not jobs_per_second else f"{jobs_per_second:.1f}"


class RecentFailures:
    """The newest failures in the journal."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._rows: deque[Row] = deque(maxlen=_FAILURES)

    def take(self, batch: RecordBatch) -> None:
        """Keep the failures of a batch."""
        for record in batch.records:
            at = record["at"]
            if (
                record["kind"] in (RecordKind.FAILED, RecordKind.RETRIED)
                and isinstance(at, int | float)
                and at >= self._since
            ):
                texts = {name: printable(str(record.get(name) or "")) for name in _TEXTS}
                self._rows.append({"at": at, **texts, "retried": record["kind"] == RecordKind.RETRIED})

    def reset(self) -> None:
        """Forget all failures."""
        self._rows.clear()

    def newest(self) -> list[Row]:
        """The failures, newest first."""
        rows = list(self._rows)  # in one step: the reading thread adds to it
        rows.sort(key=lambda row: -row["at"])
        return rows


@click.command()
@click.option(
    "--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="One look, printed; also where the output is no terminal.")
@query_options
@click.pass_obj
def top(context: Context, /, interval: float, once: bool, as_json: bool) -> None:
    """Watch queues, workers, rates and the newest failures, until q is pressed.

    Keys choose a queue, pause or resume it, requeue its failed jobs, and filter what is shown.
    The rates of queues are averages of the last two to four minutes, from the counts in the journal. Those of all
    workers are of the last ten seconds, or of one interval with --once.
    """
    client = context.client()
    now = clock.now()
    recent_failures = RecentFailures(now - _RECENT)
    statistics = Statistics()

    def rates(queues: Iterable[str]) -> dict[str, Rates]:
        return statistics.rates(queues) if following.progress.ready else {}

    following = JournalFollower(client.settings, [recent_failures, statistics], ReadFrom(since=now - _RECENT))
    click.get_current_context().call_on_close(following.close)
    live_data = LiveData(Inspector(client), str(client.settings.address), recent_failures, rates)
    # Before the journal is read, whose own client creates an SQLite file: this one refuses a mistyped path.
    live_data.refresh()
    following.begin()
    if as_json or once or not is_terminal(sys.stdout):
        time.sleep(interval)
        following.wait(_JOURNAL_TIMEOUT)
        data = live_data.refresh()
        if as_json:
            print_json(data.row())
        else:
            console = Console(highlight=False)
            console.print(view(data, width=console.width, height=_ONCE))
        return
    with _keys() as pressed, suppress(KeyboardInterrupt):
        _show(live_data, TopKeys(live_data.inspector), pressed, interval)


class LiveData:
    """Takes snapshots of queues and workers, and puts what the journal knows beside them."""

    def __init__(
        self,
        inspector: Inspector,
        broker: str,
        recent_failures: RecentFailures,
        rates: Callable[[Iterable[str]], dict[str, Rates]],
    ) -> None:
        """`rates` gives the rates of queues, as far as the journal knows them."""
        self.inspector = inspector
        self._samples = Samples(2 * _RATE_WINDOW + 120)
        self._recent_failures = recent_failures
        self._rates = rates
        self._data = ScreenData(at=clock.now(), broker=broker)

    def refresh(self) -> ScreenData:
        """The data as they are now. Raises BrokerError."""
        snapshot = self.inspector.snapshot()
        now, queues, workers = snapshot.at, snapshot.queues, snapshot.workers
        self._samples.add(snapshot)
        processed, failed = self._samples.throughput(now, _RATE_WINDOW)
        self._data = replace(
            self._data,
            at=now,
            queues=queues,
            workers=workers,
            processed=processed,
            failed=failed,
            rates=self._rates(row["name"] for row in queues if not is_failed(row["name"])),
            failures=self._recent_failures.newest(),
            problem="" if snapshot.trouble is None else snapshot.trouble.text,
        )
        return self._data

    def refresh_or_last(self) -> ScreenData:
        """The data as they are now; while the broker is away, the last data with the problem."""
        try:
            return self.refresh()
        except BrokerError as error:
            return replace(self._data, problem=f"{type(error).__name__}: {error} Trying again.")


def _show(live_data: LiveData, keys: TopKeys, pressed: Callable[[float], str], interval: float) -> None:
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            data = replace(live_data.refresh_or_last().only(keys.wanted), chosen=keys.queue)
            live.update(view(data, width=console.width, height=console.height, foot=keys.foot), refresh=True)
            if keys.press(pressed(interval), queue_order(data)):
                return


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that returns the keys pressed within so many seconds, "" for none; then restore the terminal."""
    if not is_terminal(sys.stdin):

        def wait(seconds: float) -> str:
            time.sleep(seconds)
            return ""

        yield wait
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        if not ready:
            return ""
        # A read from a terminal that is gone returns the end of the file, at once and every time.
        return os.read(descriptor, 64).decode(errors="replace") or "q"

    tty.setcbreak(descriptor)
    try:
        yield read
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
