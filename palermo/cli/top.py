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

from palermo.cli.edge import Run
from palermo.cli.options import broker_options, json_option
from palermo.cli.output import is_terminal, print_json
from palermo.cli.top_view import Scene, view
from palermo.core.failure import printable
from palermo.core.journal import Batch, Kind
from palermo.errors import BrokerError
from palermo.history.following import Following
from palermo.inspector import Inspector
from palermo.journal import Start
from palermo.rows import Row
from palermo.sampling import Samples, Snapshot

#: How far back failures are shown, in seconds, and how many at most.
_RECENT, _FAILURES = 3_600.0, 100

#: Rates are those of so many of the last seconds.
_RATED = 10.0

#: Seconds that one snapshot waits for the journal; longer, and it is shown without failures.
_PATIENCE = 5.0


class Tail:
    """The newest failures that the journal tells of."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._rows: deque[Row] = deque(maxlen=_FAILURES)

    def take(self, batch: Batch) -> None:
        """Keep the failures in it."""
        for record in batch.records:
            at = record["at"]
            if record["kind"] in (Kind.FAILED, Kind.RETRIED) and isinstance(at, int | float) and at >= self._since:
                texts = {name: printable(str(record.get(name) or "")) for name in _TEXTS}
                self._rows.append({"at": at, **texts, "retried": record["kind"] == Kind.RETRIED})

    def reset(self) -> None:
        """Forget them."""
        self._rows.clear()

    def newest(self) -> list[Row]:
        """The newest first."""
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
def top(run: Run, /, interval: float, once: bool, as_json: bool) -> None:
    """Watch queues, workers, rates and the newest failures, until q is pressed.

    Rates are those of the last ten seconds, or with --once of one interval.
    """
    client = run.client()
    now = time.time()
    tail = Tail(now - _RECENT)
    following = Following(client.settings, [tail], Start(since=now - _RECENT))
    click.get_current_context().call_on_close(following.close)
    following.begin()
    watch = Watch(Inspector(client), str(client.settings.address), tail)
    watch.look()
    if as_json or once or not is_terminal(sys.stdout):
        time.sleep(interval)
        following.wait(_PATIENCE)
        scene = watch.look()
        if as_json:
            print_json(scene.row())
        else:
            Console(highlight=False).print(view(scene))
        return
    with _keys() as pressed, suppress(KeyboardInterrupt):
        _show(watch, pressed, interval)


class Watch:
    """Looks again and again, and remembers enough for rates."""

    def __init__(self, inspector: Inspector, broker: str, tail: Tail) -> None:
        self._inspector = inspector
        self._samples = Samples(2 * _RATED + 120)
        self._tail = tail
        self._scene = Scene(at=time.time(), broker=broker)

    def look(self) -> Scene:
        """What there is now. Raises BrokerError."""
        queues, workers = self._inspector.queues(), self._inspector.workers()
        now = time.time()
        self._samples.add(Snapshot(at=now, queues=queues, workers=workers))
        processed, failed = self._samples.throughput(now, _RATED)
        self._scene = replace(
            self._scene,
            at=now,
            queues=queues,
            workers=workers,
            processed=processed,
            failed=failed,
            rates={row["name"]: self._samples.rates(row["name"], now, _RATED) for row in queues},
            failures=self._tail.newest(),
            problem="",
        )
        return self._scene

    def look_again(self) -> Scene:
        """The same; what was seen last, with the problem, while the broker is away."""
        try:
            return self.look()
        except BrokerError as error:
            return replace(self._scene, problem=f"{type(error).__name__}: {error} Trying again.")


def _show(watch: Watch, pressed: Callable[[float], str], interval: float) -> None:
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(view(watch.look_again(), height=console.height, keys=True), refresh=True)
            if "q" in pressed(interval).lower():
                return


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Gives what is pressed within so many seconds, "" for nothing; the terminal is as before afterwards."""
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
        # A terminal that is gone reads as its end, at once and again and again.
        return os.read(descriptor, 64).decode(errors="replace") or "q"

    tty.setcbreak(descriptor)
    try:
        yield read
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
