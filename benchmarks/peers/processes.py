"""The two processes of a contender: one that enqueues as it is told, and the worker, which can be held still."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import cpu_seconds, family, pss_bytes

ROOT = Path(__file__).parents[2]

#: Prefixes of environment variables that must not reach the measured programs.
_FOREIGN = ("PALERMO_", "PEERS_", "CELERY_", "dramatiq_", "RQ_", "PYTHON")


class Failed(Exception):
    """A contender cannot do what it was told; the text says what, and ends with what its process said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The duration of a piece of work, in seconds of the clock and of the CPU."""

    seconds: float
    cpu: float


def environment(told: Mapping[str, str]) -> dict[str, str]:
    """For a process: what it is told, what it must find, and no settings of the person who runs this."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return inherited | {"PYTHONPATH": str(ROOT)} | dict(told)


class ProducerProcess:
    """A process that enqueues, connected."""

    def __init__(self, python: str, app: str, told: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                [python, "-m", "benchmarks.peers.producer", app],
                cwd=ROOT,
                env=environment(told),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        self._answer()

    def do(self, work: str, **arguments: float) -> Spent:
        """Have it done; see producer.py. Raises Failed if the process ends over it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            print(json.dumps({"do": work, **arguments}), file=self._process.stdin, flush=True)
        return Spent(**self._answer())

    def close(self) -> None:
        """End it."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            answer: dict[str, float] = json.loads(line)
            return answer
        raise Failed(f"its producer ended: {last_words(self._log)}")


class WorkerProcess:
    """A worker and all that it started."""

    def __init__(self, command: list[str], told: Mapping[str, str], log: Path) -> None:
        self._log = log
        #: When it was started, in nanoseconds of the monotonic clock.
        self.began = time.monotonic_ns()
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment(told),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self._family: list[int] = []

    def check(self) -> None:
        """Raises Failed if it has ended."""
        if self._process.poll() is not None:
            raise Failed(f"its worker ended with {self._process.returncode}: {last_words(self._log)}")

    def hold(self) -> None:
        """Stop the process and its descendants by SIGSTOP, including those that it forks in the meantime."""
        self._signal(signal.SIGSTOP, self._family)
        known = set(self._family)
        while fresh := [pid for pid in family(self._process.pid) if pid not in known]:
            self._signal(signal.SIGSTOP, fresh)
            known |= set(fresh)
            self._family += fresh

    def release(self) -> None:
        """Let all of it run."""
        self._signal(signal.SIGCONT, self._family)

    def turn(self, seconds: float) -> Spent:
        """Let all of it run for so long, and hold it again."""
        worked, began = self.cpu(), time.perf_counter()
        self.release()
        time.sleep(seconds)
        self._signal(signal.SIGSTOP, self._family)
        took = time.perf_counter() - began
        self.hold()
        return Spent(seconds=took, cpu=self.cpu() - worked)

    def cpu(self) -> float:
        """Seconds of CPU that it has used so far, in steps of 10 ms."""
        return cpu_seconds(family(self._process.pid), reaped=True)

    def pids(self) -> list[int]:
        """All of its processes."""
        return family(self._process.pid)

    def memory(self) -> int:
        """Its proportional set size, in bytes."""
        return pss_bytes(family(self._process.pid))

    def terminate(self, within: float) -> float:
        """Seconds from TERM until it has ended, `within` if it has not."""
        began = time.perf_counter()
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(within)
        return min(time.perf_counter() - began, within)

    def kill(self) -> None:
        """End all of it."""
        self._family = family(self._process.pid)
        self._signal(signal.SIGKILL, self._family)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals, pids: list[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def last_words(log: Path) -> str:
    """The end of what a process said."""
    return log.read_text(errors="replace").strip()[-600:]
