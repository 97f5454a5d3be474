"""A broker, a folder and worker processes for tests of whole programs."""

import contextlib
import json
import os
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import pika

from palermo.brokers.rabbitmq.amqp.messages import Properties
from palermo.client.client import Client
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.harness.processes import WorkerProcess
from tests.helpers import HANGS, Stopwatch, eventually, has_traceback, whole_lines

COMMAND = str(Path(sys.executable).with_name("palermo"))

#: The folder with the modules of jobs for test workers.
PROGRAMS = Path(__file__).parents[1] / "programs"

#: Publish timeout of the test's own client in seconds. After half of it, a client considers its session dead and
#: publishes again, which may duplicate jobs. The default of 5 is too low for a machine that may stall for seconds.
PATIENCE = 60.0


#: Seconds within which a command must answer. Five would do on an idle machine.
ANSWER = 15.0


class JobError(NamedTuple):
    """Why a job failed."""

    class_name: str
    message: str

    def __str__(self) -> str:
        return f"{self.class_name}: {self.message}"


class Rig:
    """A broker, a folder for the jobs' output, and the workers started here. All are removed after the test.

    `module` contains the jobs for `worker` and `enqueue`. `settings` apply to the test's own client and, except for
    `publish_timeout`, to commands and workers.
    """

    def __init__(
        self, path: Path, url: str = "", exchange: str = "palermo", *, module: str = "crew", **settings: Any
    ) -> None:
        self.path = path
        self.module = module
        self.notes_path = path / "notes"
        self.trace_path = path / "trace"
        self.gate = path / "gate"
        self.settings = Settings(
            url=url or f"sqlite:///{path}/jobs.db", exchange=exchange, **{"publish_timeout": PATIENCE, **settings}
        )
        self.url = self.settings.url
        self.exchange = exchange
        self.client = Client(self.settings)
        self.inspector = Inspector(self.client)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PALERMO_")}
        self.environment = {
            **inherited,
            "PALERMO_URL": self.url,
            "PALERMO_EXCHANGE": exchange,
            "PALERMO_QUEUE_TYPE": self.settings.queue_type,
            "PALERMO_TEST_TRACE": str(self.trace_path),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(PROGRAMS), str(path), os.environ.get("PYTHONPATH")])),
        }
        self._workers: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        for worker in self._workers:
            worker.end()
        self.client.close()

    # What users do in a terminal

    def run(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """Run `palermo` with these arguments in its own process."""
        return self._run([COMMAND, *arguments], environment)

    def palermo(self, *arguments: str, code: int = 0) -> str:
        """Run `palermo`, check its exit code, and return its output."""
        done = self.run(*arguments)
        assert done.returncode == code, done.stderr
        return done.stdout

    def answer(self, command: str, **environment: str) -> tuple[int, str]:
        """Return a command's exit code and output. It must end in time and without a traceback, whatever the broker
        does.
        """
        watch = Stopwatch()
        done = self.run(*shlex.split(command), **environment)
        printed = done.stdout + done.stderr
        assert not watch.is_over(ANSWER), printed
        assert not has_traceback(printed)
        assert "unexpected" not in printed
        return done.returncode, printed

    def rows(self, *arguments: str) -> Any:
        """Run `palermo` with `--json` and return the rows."""
        return json.loads(self.palermo(*arguments, "--json"))

    def python(self, program: str) -> str:
        """Run a user's program and return its output."""
        done = self._run([sys.executable, "-c", program], {})
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _run(self, command: Sequence[str], environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command,
            env={**self.environment, "PALERMO_PUBLISH_TIMEOUT": f"{self.settings.publish_timeout:g}", **environment},
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANGS,
            check=False,
        )

    def worker(
        self,
        *arguments: str,
        modules: Sequence[str] = (),
        times: Mapping[str, float] | None = None,
        program: str = "",
        cwd: Path | None = None,
        **environment: str,
    ) -> WorkerProcess:
        """Start a worker with the default publish timeout. `times` shortens waits, see programs/impatient.py.

        `program` is a file in PROGRAMS to run instead of the command.
        """
        if times is not None:
            program = "impatient.py"
            environment["TIMES"] = json.dumps(times)
        command = [sys.executable, str(PROGRAMS / program)] if program else [COMMAND]
        return self.launch([*command, "worker", *(modules or (self.module,)), *arguments], cwd=cwd, **environment)

    def launch(
        self, command: Sequence[str], *, cwd: Path | None = None, alone: bool = False, **environment: str
    ) -> WorkerProcess:
        """Start a worker by its whole command line. With `alone`, it gets its own process group, like a command in a
        shell.
        """
        log = self.path / f"worker-{len(self._workers)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                env={**self.environment, **environment},
                cwd=cwd or self.path,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=alone,
            )
        worker = WorkerProcess(process, log)
        self._workers.append(worker)
        return worker

    def ready(self, *workers: WorkerProcess) -> None:
        """Wait until these workers wait for jobs."""
        wanted = {worker.pid for worker in workers}
        eventually(lambda: wanted <= {row["pid"] for row in self.workers() if row["state"] == "idle"})

    def idle(self, *arguments: str, **more: Any) -> WorkerProcess:
        """Start a worker and wait until it waits for jobs."""
        worker = self.worker(*arguments, **more)
        self.ready(worker)
        return worker

    def burst(self, *arguments: str, **more: Any) -> str:
        """Run jobs until the queues are empty, and return the worker's log."""
        worker = self.worker("--burst", *arguments, **more)
        assert worker.wait() == 0, worker.log
        return worker.log

    def run_one(self, worker: WorkerProcess) -> None:
        """Run a job in the worker's only slot, which is certainly idle afterwards; before, it may still have been
        starting.
        """
        self.enqueue("nothing")
        row = ("idle", 1)
        eventually(lambda: row in [(one["state"], one["processed"]) for one in self.workers()])
        assert worker.alive

    def freeze(self, worker: WorkerProcess) -> None:
        """Suspend the worker with SIGSTOP while it doesn't hold the lock of a SQLite file, on which others would
        wait.
        """
        with contextlib.closing(sqlite3.connect(":memory:", timeout=HANGS, isolation_level=None)) as file:
            if self.url.startswith("sqlite"):
                file.execute("ATTACH ? AS jobs", (self.url.removeprefix("sqlite:///"),))
                file.execute("BEGIN IMMEDIATE")
            worker.send(signal.SIGSTOP)
            stat = Path(f"/proc/{worker.pid}/stat")
            eventually(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T")

    # What programs do

    def enqueue(
        self, job: str, *args: Any, module: str = "", kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> str:
        """Enqueue a job of the rig's module or another one, and return its id."""
        name = job if "." in job else f"{module or self.module}.{job}"
        return self.client.enqueue(name, args, kwargs or {}, **options).id

    def hold(self, text: str = "held") -> str:
        """Enqueue a job that runs until the gate opens, and return its id."""
        return self.enqueue("hold", str(self.notes_path), str(self.gate), text)

    def holding(self, *arguments: str, **more: Any) -> tuple[WorkerProcess, str]:
        """Start a worker that runs a job until the gate opens, and return both."""
        id = self.hold()
        worker = self.worker(*arguments, **more)
        eventually(lambda: self.lines() == ["held begins"])
        return worker, id

    def open_gate(self, gate: str = "gate") -> None:
        (self.path / gate).touch()

    def cancel(self, id: str, **more: Any) -> dict[str, Any]:
        """Cancel a running job, and return the answer once the job has ended. A worker waits 3 s for that, and a caller
        5 s.
        """
        for _ in range(10):
            began = time.monotonic()
            (row,) = self.inspector.jobs.cancel(id, **more)
            if row["state"] == "cancelled":
                break
            assert row["state"] in ("cancelling", "marked"), row
            assert time.monotonic() - began >= 3, row
        return dict(row)

    # What can be observed

    def lines(self, file: str = "notes") -> list[str]:
        """Return the complete lines of a file that jobs write. The last one may be incomplete."""
        return whole_lines(self.path / file)

    def await_lines(self, count: int, file: str = "notes", within: float = HANGS) -> list[str]:
        """Return the lines of a file once there are this many."""
        eventually(lambda: len(self.lines(file)) >= count, within=within)
        return self.lines(file)

    def trace(self, more: str = "") -> list[list[str]]:
        """Return the lines of the trace file, split into words. `more` is the end of another trace file's name."""
        return [line.split() for line in whole_lines(Path(f"{self.trace_path}{more}"))]

    def workers(self) -> list[dict[str, Any]]:
        """Return the rows of workers. One that doesn't answer within a second is silent or missing."""
        return [dict(row) for row in self.inspector.workers.list()]

    def only_worker(self) -> dict[str, Any]:
        """Return the row of the only worker once it answers."""
        (row,) = eventually(lambda: [row for row in self.workers() if row["answers"]])
        return row

    def drained(self) -> bool:
        """Whether no job is waiting or running."""
        rows = self.inspector.queues.list()
        return not any(row["pending"] or row["in_progress"] for row in rows if row["name"] != "failed")

    def pending(self, queue: str = "jobs") -> int:
        return {row["name"]: row["pending"] for row in self.inspector.queues.list()}.get(queue, 0)

    def failed(self) -> dict[str, dict[str, Any]]:
        """Return the rows of failed jobs, by id."""
        return {row["id"]: dict(row) for row in self.inspector.failed.list(limit=10_000)}

    def errors(self) -> dict[str, JobError]:
        """Return the errors of failed jobs, by id."""
        return {id: JobError(row["error"]["class"], row["error"]["message"]) for id, row in self.failed().items()}

    # What other programs do on RabbitMQ

    def put(self, queue: str, body: bytes, **properties: Any) -> None:
        """Publish a message like a program that doesn't use Palermo."""
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            # pika's own Properties can't write a double, unlike other clients.
            channel.basic_publish(self.exchange, queue, body, Properties(**properties), mandatory=True)
