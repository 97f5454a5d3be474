"""`palermo top`: a live view of queues, workers, rates and the newest failures."""

import os
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import click
from rich.console import Console
from rich.live import Live

from palermo.cli.command_group import Context
from palermo.cli.options import broker_options, json_option
from palermo.cli.output import is_terminal, print_json
from palermo.cli.top_screen import ScreenData, view
from palermo.contract.journal import ReadFrom
from palermo.contract.rows import Row
from palermo.core.failure import printable
from palermo.core.journal_records import RecordBatch, RecordKind
from palermo.errors import BrokerError
from palermo.history.journal_reader import JournalFollower
from palermo.inspector.inspector import Inspector
from palermo.inspector.rates import Samples, Snapshot

#: How far back failures are shown, in seconds, and the most that are shown.
_RECENT, _FAILURES = 3_600.0, 100

#: Rates are measured over this many seconds before now.
_RATE_WINDOW = 10.0

#: Seconds that one snapshot waits for the journal; after that it is shown without failures.
_JOURNAL_TIMEOUT = 5.0


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


_TEXTS = ("id", "job", "queue", "error", "message")


@click.command()
@click.option(
    "--interval", type=click.FloatRange(0.2, 60), default=1.0, show_default=True, help="Seconds between looks."
)
@click.option("--once", is_flag=True, help="One look, printed; also where the output is no terminal.")
@broker_options
@json_option
@click.pass_obj
def top(context: Context, /, interval: float, once: bool, as_json: bool) -> None:
    """Watch queues, workers, rates and the newest failures, until q is pressed.

    Rates are those of the last ten seconds, or with --once of one interval.
    """
    client = context.client()
    now = time.time()
    recent_failures = RecentFailures(now - _RECENT)
    following = JournalFollower(client.settings, [recent_failures], ReadFrom(since=now - _RECENT))
    click.get_current_context().call_on_close(following.close)
    following.begin()
    live_data = LiveData(Inspector(client), str(client.settings.address), recent_failures)
    live_data.refresh()
    if as_json or once or not is_terminal(sys.stdout):
        time.sleep(interval)
        following.wait(_JOURNAL_TIMEOUT)
        data = live_data.refresh()
        if as_json:
            print_json(data.row())
        else:
            Console(highlight=False).print(view(data))
        return
    with _keys() as pressed, suppress(KeyboardInterrupt):
        _show(live_data, pressed, interval)


class LiveData:
    """Takes snapshots of queues and workers, and remembers enough of them for rates."""

    def __init__(self, inspector: Inspector, broker: str, recent_failures: RecentFailures) -> None:
        self._inspector = inspector
        self._samples = Samples(2 * _RATE_WINDOW + 120)
        self._recent_failures = recent_failures
        self._data = ScreenData(at=time.time(), broker=broker)

    def refresh(self) -> ScreenData:
        """The data as they are now. Raises BrokerError."""
        queues, workers = self._inspector.queues(), self._inspector.workers()
        now = time.time()
        self._samples.add(Snapshot(at=now, queues=queues, workers=workers))
        processed, failed = self._samples.throughput(now, _RATE_WINDOW)
        self._data = replace(
            self._data,
            at=now,
            queues=queues,
            workers=workers,
            processed=processed,
            failed=failed,
            rates={row["name"]: self._samples.rates(row["name"], now, _RATE_WINDOW) for row in queues},
            failures=self._recent_failures.newest(),
            problem="",
        )
        return self._data

    def refresh_or_last(self) -> ScreenData:
        """The data as they are now; while the broker is away, the last data with the problem."""
        try:
            return self.refresh()
        except BrokerError as error:
            return replace(self._data, problem=f"{type(error).__name__}: {error} Trying again.")


def _show(live_data: LiveData, pressed: Callable[[float], str], interval: float) -> None:
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(view(live_data.refresh_or_last(), height=console.height, keys=True), refresh=True)
            if "q" in pressed(interval).lower():
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
