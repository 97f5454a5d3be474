"""Modules and functions of Palermo that a plain job visits on its way from enqueue to acknowledgement.

    python -m benchmarks.visits [--broker rabbitmq|redis|sqlite] [--list] [--rounds 25] [--warm-up 30]

A profile hook sees them in all processes that take part: this one, which enqueues, and those of a worker with one slot.
After some jobs to warm up, each round records one job alone. A round ends when nothing new is visited for a while after
the job has run. A function counts if two rounds of three have visited it; the others are timers that came in between.
It counts whether it was called, resumed or only went on, and once, however often that happened. A comprehension counts
as the function around it. Functions that no file holds, such as the __init__ of a dataclass, do not count.
"""

import argparse
import mmap
import os
import re
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

ROOT = Path(__file__).parent.parent

PACKAGE = "palermo"

#: The processes, in the order in which a job comes to them. The template only forks slots.
CLIENT, PARENT, SLOT, TEMPLATE = PROCESSES = ("client", "worker's parent", "slot", "template")

#: Seconds without a new visit after which a job is over: no client can see when RabbitMQ gets the acknowledgement.
#: A worker with nothing to do changes its titles after twice as long.
QUIET = 0.025

#: The share of the rounds by which a function counts. With 25 processes waiting for two cores, what a job visits was in
#: three rounds of four or more: the others were taken to be over too early. Timers were in three of five at most.
SHARE = 2 / 3

#: Seconds after which a job counts as stuck.
_WITHIN = 60.0

#: The file by which all recorders learn what to do. Its only byte is the number of the round, or 0 between two rounds.
_ROUND = "round"

#: In the qualified name of a comprehension: what comes after the function around it.
_COMPREHENSION = re.compile(r"(\.<locals>)?\.<(listcomp|setcomp|dictcomp|genexpr)>")

#: The program of the worker's process.
_WORKER = "import sys; from benchmarks.visits import be_worker; be_worker(*sys.argv[1:])"


class Visit(NamedTuple):
    """A function that was visited."""

    module: str
    #: Its qualified name.
    function: str


class Recorder:
    """A profile hook that writes down each function of the package, and of the job's module, at its first visit.

    It is installed when a process begins, since Python sets no hook in a thread that already runs, and forked processes
    inherit it. Each process writes to a file of its own.
    """

    def __init__(self, folder: Path, job_module: str) -> None:
        self._folder = folder
        self._job_module = job_module
        with (folder / _ROUND).open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 1)
        self._round = 0
        #: With the process, because a forked one begins with what the other has seen.
        self._seen: set[tuple[int, CodeType]] = set()

    def install(self) -> None:
        """Record in this thread, and in those that begin later."""
        threading.setprofile(self._look)
        sys.setprofile(self._look)

    def _look(self, frame: FrameType, event: str, argument: object) -> None:
        number, code = self._shared[0], frame.f_code
        if not number or code.co_filename.startswith("<"):
            return
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] != PACKAGE and module != self._job_module:
            return
        if number != self._round:
            self._round, self._seen = number, set()
        pid = os.getpid()
        if (pid, code) not in self._seen:
            self._seen.add((pid, code))
            with (self._folder / f"{number}.{pid}").open("a") as file:
                file.write(f"{time.monotonic()} {module} {_COMPREHENSION.sub('', code.co_qualname)}\n")


class Records:
    """The files that all recorders of one folder write."""

    def __init__(self, folder: Path, job: Visit) -> None:
        self._folder = folder
        self._job = job
        self._round = 0
        (folder / _ROUND).write_bytes(b"\0")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what is done here, and what the worker does until the job has run and nothing new is visited."""
        self._round = self._round % 255 + 1
        self._tell(self._round)
        try:
            yield
            self._wait()
        finally:
            self._tell(0)

    def take(self) -> dict[int, set[Visit]]:
        """The visits of the last round, by the id of the process. They can be taken once."""
        lines = sorted(self._read())
        for path in self._files():
            path.unlink()
        taken: dict[int, set[Visit]] = defaultdict(set)
        last, ran = lines[0][0], False
        for at, pid, visit in lines:
            if ran and at - last > QUIET:
                break
            last, ran = at, ran or visit == self._job
            taken[pid].add(visit)
        return taken

    def _tell(self, number: int) -> None:
        # In place, because the recorders have mapped this very file.
        with (self._folder / _ROUND).open("r+b") as file:
            file.write(bytes([number]))

    def _wait(self) -> None:
        deadline = time.monotonic() + _WITHIN
        before: list[tuple[float, int, Visit]] = []
        while (now := self._read()) != before or all(visit != self._job for _, _, visit in now):
            if time.monotonic() > deadline:
                raise SystemExit("the worker did not take its job.")
            before = now
            time.sleep(2 * QUIET)

    def _read(self) -> list[tuple[float, int, Visit]]:
        """The visits of this round, each with its time and the id of its process."""
        found = []
        for path in self._files():
            whole, _, _ = path.read_text().rpartition("\n")  # the last line may be half written
            for line in whole.splitlines():
                at, module, function = line.split(" ", 2)
                found.append((float(at), int(path.suffix[1:]), Visit(module, function)))
        return found

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self._round}.*"))


def be_worker(folder: str, job_module: str, *arguments: str) -> None:
    """Run `palermo` with these arguments in this process, and record its visits."""
    Recorder(Path(folder), job_module).install()
    sys.argv[1:] = arguments
    runpy.run_module(PACKAGE, run_name="__main__", alter_sys=True)


def visited(environment: Mapping[str, str], *, rounds: int, warm_up: int) -> dict[str, Counter[Visit]]:
    """In how many of the rounds each process has visited each function; the client is this process."""
    # Imported here: the worker's process imports this file too, and needs none of it.
    from benchmarks.jobs import ORDER, QUEUE, noop

    job = Visit(noop.__module__, "noop")
    counted: dict[str, Counter[Visit]] = {process: Counter() for process in PROCESSES}
    with tempfile.TemporaryDirectory() as name:
        records = Records(Path(name), job)
        Recorder(Path(name), job.module).install()
        command = [sys.executable, "-c", _WORKER, name, job.module, "worker", job.module, "-q", QUEUE]
        worker = subprocess.Popen([*command, "--log-level", "warning"], cwd=ROOT, env=dict(environment))
        try:
            for number in range(warm_up + rounds):
                with records.recording():
                    noop.enqueue(ORDER)
                for pid, visits in records.take().items():
                    if number >= warm_up:
                        child = SLOT if job in visits else TEMPLATE
                        process = {os.getpid(): CLIENT, worker.pid: PARENT}.get(pid, child)
                        counted[process].update(visits - {job})
        finally:
            worker.terminate()
            worker.wait()
    return counted


def main() -> None:
    # Not above, because a worker imports this module before anything is recorded.
    from benchmarks.ground import BROKERS, connected

    parser = argparse.ArgumentParser(description="How much of Palermo a plain job visits, from enqueue to its ack.")
    parser.add_argument("--broker", choices=BROKERS, default="rabbitmq", help="%(default)s unless given")
    parser.add_argument("--list", action="store_true", help="name the modules and functions too")
    parser.add_argument("--rounds", type=int, default=25, help="of one job each; %(default)s unless given")
    parser.add_argument("--warm-up", type=int, default=30, metavar="JOBS", help="%(default)s unless given")
    given = parser.parse_args()
    with connected(given.broker) as (versions, environment):
        counted = visited(environment, rounds=given.rounds, warm_up=given.warm_up)
    found = {
        process: {visit for visit, count in visits.items() if count >= SHARE * given.rounds}
        for process, visits in counted.items()
    }
    print("visits: a plain job from enqueue to acknowledgement")
    print(f"{versions}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {given.rounds} rounds\n")
    print(f"{'process':>16} {'modules':>10} {'functions':>10}")
    for process, visits in found.items():
        if visits:
            _row(process, visits)
    total = set().union(*found.values())
    _row("all, distinct", total)
    others = set().union(*counted.values()) - total
    print(f"\n{len(others)} more functions were visited in too few of the rounds.")
    if given.list:
        for process, visits in found.items():
            if visits:
                _name(process, visits)
        _name("in too few of the rounds", others)


def _row(name: str, visits: set[Visit]) -> None:
    print(f"{name:>16} {len({visit.module for visit in visits}):>10} {len(visits):>10}")


def _name(heading: str, visits: set[Visit]) -> None:
    print(f"\n{heading}")
    for module in sorted({visit.module for visit in visits}):
        print(f"  {module}")
        for visit in sorted(visits):
            if visit.module == module:
                print(f"    {visit.function}")


if __name__ == "__main__":
    main()
