"""The steps of the demo: enqueue, work, show failures, requeue. They use only features available to users.

Each step checks its result, and raises DemoFailed with a description if something went wrong.
"""

import json
import os
import random
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from palermo.client.client import Client
from palermo.client.handle import Job
from palermo.contract.rows import Row
from palermo.core.text import count
from palermo.demo.jobs import Parsed, parse
from palermo.demo.screen import Screen, per_second
from palermo.errors import PalermoError
from palermo.inspector.inspector import Inspector
from palermo.worker.handle import WorkerHandle

#: Seconds without a finished job that indicate a problem.
_STALLED = 60.0

#: Seconds between checks of the worker.
_POLL_EVERY = 0.1

#: More failures than any machine's standard library can cause.
_MANY = 10_000

#: Seconds to wait for a result once its job has run.
_RESULT_TIMEOUT = 30.0

#: Damaged files. Their names end in .txt, so that tools for Python files ignore them.
DAMAGED = Path(__file__).with_name("damaged")

#: A Latin-1 file without a declared encoding, which can be parsed if the job is given the encoding.
BAD_ENCODING = DAMAGED / "bad_encoding.py.txt"

#: Python 2 code, which can't be parsed.
PYTHON_2 = DAMAGED / "python_2.py.txt"

#: Folders in the standard library with third-party packages.
_NOT_STANDARD = {"site-packages", "dist-packages"}


class DemoFailed(PalermoError):
    """A step of the demo went wrong."""


class DemoSteps:
    """The steps, each of which depends on the previous ones."""

    def __init__(self, client: Client, screen: Screen, *, program: str, log: Path) -> None:
        self._client = client
        self._inspector = Inspector(client)
        self._screen = screen
        self._program = program
        self._log = log
        #: The enqueued jobs, one per file.
        self._jobs: list[Job] = []
        #: Number of jobs that the worker must have run by now.
        self._runs = 0
        #: The failed jobs of the first round, by path of their file.
        self._failed: dict[str, Row] = {}

    def enqueue(self, files: int) -> None:
        """Enqueue one job per file."""
        library, damaged = stdlib_files(files), damaged_files()
        self._screen.step("1. Enqueue one job per file")
        self._screen.line(f"{count(len(library), 'Python file')} of Python's standard library, {stdlib_root()}")
        self._screen.line(f"{count(len(damaged), 'damaged file')}, whose jobs must fail, of {DAMAGED}")
        started = time.monotonic()
        paths = interleave(damaged, library)
        self._jobs = self._client.enqueue_many((parse.definition, (str(path),), {}) for path in paths)
        self._runs = len(self._jobs)
        seconds = time.monotonic() - started
        self._screen.line(f"{count(self._runs, 'job')} stored in queue {self._jobs[0].queue} in {seconds:.1f} s")

    def work(self, worker: WorkerHandle, *, slots: int) -> None:
        """Wait until every job has run once."""
        self._screen.step(f"2. Work on them, {slots} at a time")
        self._screen.command(f"{self._program} worker palermo.demo.jobs -c {slots}")
        started = time.monotonic()
        with self._screen.progress(self._runs) as tell:
            row = self._wait(worker, tell)
        seconds = time.monotonic() - started
        self._screen.line(f"{count(self._runs, 'job')} in {seconds:.1f} s, {per_second(self._runs, seconds)}")
        others = row["failed"] - len(damaged_files())
        why = f"; {others:,} of them parsed files of Python's own tests, which are damaged too" if others > 0 else ""
        self._screen.line(f"{count(row['failed'], 'job')} failed{why}", style="red")
        listed: Sequence[Row] = self._inspector.failed.list(limit=_MANY)
        self._failed = {row["args"][0]: row for row in listed}
        expect(
            len(self._failed) == row["failed"], f"`failed` holds {count(len(self._failed), 'job')}, not {row['failed']}"
        )
        sound = [path.name for path in damaged_files() if str(path) not in self._failed]
        expect(not sound, f"these damaged files did not fail: {', '.join(sound)}")
        self._show_results()

    def _show_results(self) -> None:
        """Read the jobs' return values and show their sums. Every successful job has one."""
        failed = {row["id"] for row in self._failed.values()}
        results: list[Parsed] = [job.result(_RESULT_TIMEOUT) for job in self._jobs if job.id not in failed]
        expect(len(results) == len(self._jobs) - len(failed), "some failed jobs were not enqueued by this demo")
        nodes, functions = sum(result.nodes for result in results), sum(result.functions for result in results)
        line = f"{count(len(results), 'job')} done; their results add up to {nodes:,} syntax nodes"
        self._screen.line(f"{line} and {functions:,} functions", style="green")

    def show_failures(self) -> None:
        """Show the failures by kind, and one of them in full."""
        self._screen.step("3. Inspect the failures")
        self._screen.command(f"{self._program} failed groups")
        paths = {row["id"]: path for path, row in self._failed.items()}
        self._screen.groups(self._inspector.failed.groups(), lambda group: Path(paths[group["id"]]).name)
        row: Row = self._inspector.failed.show(self._failed[str(BAD_ENCODING)]["id"])
        self._screen.command(f"{self._program} failed show {row['id']}")
        self._screen.facts([(name, row[name]) for name in ("job", "args", "kwargs", "queue", "worker", "failed_at")])
        self._screen.traceback(row["error"]["traceback"])

    def requeue_corrected(self, worker: WorkerHandle) -> None:
        """Requeue a failed job with arguments that make it succeed."""
        id, kwargs = self._failed[str(BAD_ENCODING)]["id"], {"encoding": "latin-1"}
        self._screen.step("4. Requeue that job with the encoding that its file does not declare")
        self._screen.command(f"{self._program} failed requeue {id} --kwargs '{json.dumps(kwargs)}'")
        self._inspector.failed.requeue(id, kwargs=kwargs)
        self._runs += 1
        self._wait(worker)
        left = {row["id"] for row in self._inspector.failed.list(limit=_MANY)}
        expect(id not in left, f"the corrected job {id} failed again")
        expect(
            len(left) == len(self._failed) - 1, f"`failed` holds {count(len(left), 'job')}, not {len(self._failed) - 1}"
        )
        found = self._client.job_by_id(id).result(_RESULT_TIMEOUT).functions
        expect(found == 1, f"the corrected job found {count(found, 'function')}, not 1")
        self._screen.line(f"it ran and left the failed jobs: {len(left):,} now", style="green")
        self._screen.line(f"its result: {count(found, 'function')} in {BAD_ENCODING.name}")

    def requeue_unchanged(self, worker: WorkerHandle) -> None:
        """Requeue another job unchanged, which fails again."""
        id = self._failed[str(PYTHON_2)]["id"]
        self._screen.step(f"5. Requeue {PYTHON_2.name} as it is")
        self._screen.command(f"{self._program} failed requeue {id}")
        self._inspector.failed.requeue(id)
        self._runs += 1
        self._wait(worker)
        row: Row = self._inspector.failed.show(id)
        expect(row["retries"] == 1, f"the job that was requeued once has retries {row['retries']}")
        self._screen.line(f"it failed again, retries {row['retries']}: {row['error']['message']}", style="red")

    def _wait(self, worker: WorkerHandle, tell: Callable[[int, int], None] = lambda done, failed: None) -> Row:
        """Wait until the worker has run the expected number of jobs, and return its row."""
        done, since = -1, time.monotonic()
        while True:
            workers: Sequence[Row] = self._inspector.workers.list()
            for row in workers:
                if row["pid"] != worker.pid:
                    continue
                tell(row["processed"], row["failed"])
                if row["processed"] >= self._runs:
                    return row
                if row["processed"] > done:
                    done, since = row["processed"], time.monotonic()
            expect(worker.alive, f"the worker has ended: {last_line(self._log)}")
            waited = time.monotonic() - since
            expect(
                waited < _STALLED, f"no job was done for {waited:.0f} s; the worker's last line: {last_line(self._log)}"
            )
            time.sleep(_POLL_EVERY)


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line for line in reversed(lines) if line.strip()), "nothing")


def expect(true: bool, otherwise: str) -> None:
    """Raise DemoFailed with the text `otherwise` unless `true` is true."""
    if not true:
        raise DemoFailed(f"the demo failed: {otherwise.rstrip('.')}.")


# -- the files to parse: the running interpreter's standard library, and damaged ones


def stdlib_root() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def stdlib_files(limit: int | None = None) -> list[Path]:
    """Return up to `limit` Python files of the standard library, including its tests if they are installed.

    They are in a reproducible pseudorandom order, because files of one folder are similar and would make the progress
    uneven.
    """
    found: list[Path] = []
    for folder, below, names in os.walk(stdlib_root()):
        below[:] = sorted(set(below) - _NOT_STANDARD)
        found += [Path(folder, name) for name in sorted(names) if name.endswith(".py")]
    random.Random(1).shuffle(found)
    return found[:limit]


def damaged_files() -> list[Path]:
    """Return the damaged files included in Palermo."""
    return sorted(DAMAGED.glob("*.py.txt"))


def interleave(few: list[Path], many: list[Path]) -> list[Path]:
    """Merge two lists, spreading the few evenly among the many and keeping the order of both."""
    step = len(many) // (len(few) + 1)
    mixed = list(many)
    for nth, path in enumerate(few, start=1):
        mixed.insert(nth * step + nth - 1, path)
    return mixed
