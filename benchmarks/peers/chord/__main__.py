"""A chord beside Celery, Dramatiq and RQ: `python -m benchmarks.peers.chord [-n JOBS] [--kills N] [SYSTEM…]`.

Each system runs JOBS jobs with two slots, and then the sum of what they returned. With --kills, that many randomly
chosen processes of its worker are killed on the way; a worker that ends is started again. Prints the seconds until the
program has the sum, whether the sum is right, and the highest memory of the worker and of the program.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.compare import machine
from benchmarks.peers.processes import ROOT
from benchmarks.peers.stores import stores
from benchmarks.peers.systems.palermo import EXCHANGE
from benchmarks.processes import family, pss_bytes

#: Seconds after which a system counts as stuck, until the workers run jobs, and between two kills.
_WITHIN, _START, _KILL_EVERY = 900.0, 4.0, 0.7

_FOLDER = "benchmarks.peers.chord"

#: The commands of each system's workers, after its Python.
WORKERS = {
    "palermo": [["-m", "palermo", "worker", f"{_FOLDER}.palermo", "-q", "chord", "-c", "2", "--log-level", "error"]],
    "celery": [["-m", "celery", "-A", f"{_FOLDER}.celery", "worker", "-c", "2", "-l", "error"]],
    "dramatiq": [["-m", "dramatiq", f"{_FOLDER}.dramatiq", "-p", "2", "-t", "1"]],
    "rq": 2 * [["-m", "rq.cli", "worker", "chord", "-q"]],
}


class Side:
    """One system's workers."""

    def __init__(self, system: str, environment: dict[str, str], venv: Path) -> None:
        self.python = sys.executable if system == "palermo" else str(venv / "bin" / "python")
        self._environment = environment
        self._workers = [(command, self.start(command)) for command in WORKERS[system]]

    def start(self, command: list[str], stdout: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
        """Start a process of this system."""
        return subprocess.Popen(
            [self.python, *command],
            cwd=ROOT,
            env=self._environment,
            text=True,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
        )

    @property
    def pids(self) -> list[int]:
        return [pid for _, worker in self._workers for pid in family(worker.pid)]

    def keep_up(self) -> None:
        """Start the workers that ended again."""
        self._workers = [
            (command, worker if worker.poll() is None else self.start(command)) for command, worker in self._workers
        ]

    def end(self) -> None:
        for pid in self.pids:
            kill(pid)
        for _, worker in self._workers:
            worker.wait()


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def measure(system: str, side: Side, count: int, kills: int) -> str:
    """One line: the time, the sum and the memory."""
    time.sleep(_START)
    began = time.monotonic()
    client = side.start(["-m", f"{_FOLDER}.client", system, str(count), str(_WITHIN)], stdout=subprocess.PIPE)
    worker_bytes = client_bytes = killed = 0
    while client.poll() is None:
        pids = side.pids
        worker_bytes, client_bytes = max(worker_bytes, pss_bytes(pids)), max(client_bytes, pss_bytes([client.pid]))
        if killed < kills and time.monotonic() > began + (killed + 2) * _KILL_EVERY:
            kill(random.choice(pids))
            killed += 1
        side.keep_up()
        time.sleep(0.1)
    took, found = time.monotonic() - began, client.communicate()[0].strip() or "no sum"
    right = "right" if found == str(count * (count - 1) // 2) else f"WRONG: {found}"
    memory = f"workers {worker_bytes / 1e6:.0f} MB, program {client_bytes / 1e6:.0f} MB"
    return f"{system:9} {took:7.2f} s  {count / took:6,.0f}/s  {killed} kills, sum {right}; {memory}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"default: {' '.join(WORKERS)}")
    parser.add_argument("-n", type=int, default=10_000, metavar="JOBS", help="default: %(default)s")
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="default: %(default)s")
    parser.add_argument("--url", help="a RabbitMQ to measure on; without it, a private node is started")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv-bench", help="where the other systems are installed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, stores(given.url, Path(folder), redis=True) as found:
        amqp, redis = found.url("rabbitmq", ""), found.redis
        environment = os.environ | {"AMQP_URL": amqp, "PALERMO_URL": amqp, "PALERMO_EXCHANGE": EXCHANGE}
        environment |= {"REDIS_URL": redis, "RQ_REDIS_URL": redis, "C_FORCE_ROOT": "1"}
        print(f"RabbitMQ {found.version}; {machine()}; {given.n:,} jobs")
        for system in given.systems or WORKERS:
            side = Side(system, environment, given.venv)
            try:
                print(measure(system, side, given.n, given.kills), flush=True)
            finally:
                side.end()


if __name__ == "__main__":
    main()
