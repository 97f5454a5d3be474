"""A worker as its user has it: a process of its own, on the embedded broker, with jobs from programs/."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from palermo.client.client import Client
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.helpers import HANGS, eventually

PROGRAMS = Path(__file__).parent / "programs"


class Process:
    """A running `palermo worker`."""

    def __init__(self, popen: "subprocess.Popen[str]", log: Path) -> None:
        self._popen = popen
        self._log = log
        self.pid = popen.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def wait(self, within: float = HANGS) -> int:
        eventually(lambda: not self.alive, within=within)
        return self._popen.wait()

    def children(self) -> list[int]:
        """The template and its slots."""
        template = _children(self.pid)
        return template + [slot for pid in template for slot in _children(pid)]

    def grown(self, processes: int) -> list[int]:
        """The template and its slots, once there are so many."""
        return eventually(lambda: found if len(found := self.children()) == processes else [])

    def title(self) -> str:
        return title(self.pid)

    def dump(self, shown: Callable[[str], bool]) -> None:
        """Have it log stacks until its log shows this: of a slot that gets no turn for 2 s it logs none."""

        def asked() -> bool:
            self.send(signal.SIGTTIN)
            with suppress(AssertionError):
                return eventually(lambda: shown(self.log), within=5)
            return False

        eventually(asked)

    def end(self) -> None:
        if self.alive:
            self._popen.kill()
            self._popen.wait()


class Site:
    """A broker, what is in it, and the workers that serve it."""

    def __init__(self, path: Path, *, url: str = "", exchange: str = "palermo", **settings: Any) -> None:
        self.path = path
        self.notes_path = path / "notes"
        self.trace_path = path / "trace"
        self.gate = path / "gate"
        # The test's own client waits longer than a machine stands still; workers have the default.
        settings.setdefault("publish_timeout", 30.0)
        self.settings = Settings(url=url or f"sqlite:///{path}/jobs.db", exchange=exchange, **settings)
        self.client = Client(self.settings)
        self.inspector = Inspector(self.client)
        self._processes: list[Process] = []

    def enqueue(self, job: str, *args: Any, module: str = "crew", **options: Any) -> str:
        return self.client.enqueue(f"{module}.{job}", args, {}, **options).id

    def start(
        self, *arguments: str, modules: tuple[str, ...] = ("crew",), within: Path = PROGRAMS, **environment: str
    ) -> Process:
        command = [sys.executable, "-m", "palermo", "worker", *modules, *arguments]
        return self.run(command, within=within, **environment)

    def run(self, command: list[str], *, within: Path = PROGRAMS, **environment: str) -> Process:
        """Start a worker by this command line."""
        log = self.path / f"worker-{len(self._processes)}.log"
        with log.open("w") as file:
            popen = subprocess.Popen(
                command,
                cwd=within,
                env={
                    **os.environ,
                    "PALERMO_URL": self.settings.url,
                    "PALERMO_EXCHANGE": self.settings.exchange,
                    "PALERMO_TEST_TRACE": str(self.trace_path),
                    **environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                text=True,
            )
        process = Process(popen, log)
        self._processes.append(process)
        return process

    def burst(self, *arguments: str, **more: Any) -> str:
        """Work until there is nothing to do; the log."""
        process = self.start("--burst", *arguments, **more)
        assert process.wait() == 0, process.log
        return process.log

    def hold(self, text: str = "held") -> str:
        """Enqueue a job that runs until the gate opens; its id."""
        return self.enqueue("hold", str(self.notes_path), str(self.gate), text)

    def open_gate(self) -> None:
        self.gate.touch()

    def notes(self) -> list[str]:
        return self.notes_path.read_text().splitlines() if self.notes_path.exists() else []

    def trace(self, more: str = "") -> list[list[str]]:
        """The lines of the trace, or of the file beside it whose name ends in `more`."""
        path = self.trace_path.with_name(self.trace_path.name + more)
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split() for line in lines]

    def errors(self) -> dict[str, tuple[str, str]]:
        """By job id: class and message of what is in `failed`."""
        return {
            row["id"]: (row["error"]["class"], row["error"]["message"]) for row in self.inspector.failed(limit=1000)
        }

    def pending(self, queue: str = "jobs") -> int:
        return self.inspector.size(queue)

    def workers(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.inspector.workers()]

    def worker(self) -> dict[str, Any]:
        """The only worker, once it answers: RabbitMQ lists one that does not within a second as silent, or not."""
        (row,) = eventually(lambda: [row for row in self.workers() if row["answers"]])
        return row

    def cancel(self, id: str, **more: Any) -> dict[str, Any]:
        """Cancel a job that runs, and the answer once it has ended: a worker waits 3 s for that, and a caller 5 s."""
        for _ in range(10):
            began = time.monotonic()
            (row,) = self.inspector.cancel(id, **more)
            if row["state"] == "cancelled":
                break
            assert row["state"] in ("cancelling", "marked"), row
            assert time.monotonic() - began >= 3, row
        return dict(row)

    def ready(self, process: Process) -> None:
        """Wait until the worker waits for jobs."""
        eventually(lambda: any(row["pid"] == process.pid and row["state"] == "idle" for row in self.workers()))

    def run_one(self, process: Process) -> None:
        """Have the worker's only slot run a job: from then on it idles, where before it may not have begun."""
        self.enqueue("nothing")
        row = ("idle", 1)
        eventually(lambda: row in [(one["state"], one["processed"]) for one in self.workers()])
        assert process.alive

    def close(self) -> None:
        for process in self._processes:
            process.end()
        self.client.close()


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()


def exists(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
