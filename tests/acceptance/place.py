"""A place where Palermo is used: one broker, one directory, and workers that are processes of their own."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pika

from palermo.client.client import Client
from palermo.core.topology import amqp_queue
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.helpers import HANGS, eventually

COMMAND = str(Path(sys.executable).with_name("palermo"))
PROGRAMS = Path(__file__).parent / "programs"

#: Seconds that a test's own programs give the broker, 5 in truth. After half of it they take their session for dead and
#: publish again, so that a job may be there twice: on a machine that stands still for some seconds, not before this.
PATIENCE = 60.0


class Worker:
    """A running `palermo worker`."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self._process = process
        self._log = log
        self.pid = process.pid

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self, within: float = HANGS) -> int:
        return self._process.wait(within)

    def kill9(self) -> None:
        """End the worker's parent process, as the kernel or a person in a hurry does."""
        self._process.kill()
        self._process.wait(HANGS)

    def end(self) -> None:
        if self.alive:
            self.kill9()

    def tree(self) -> list[int]:
        """The parent, its template and the slots."""
        template = children(self.pid)
        return [self.pid, *template, *(slot for pid in template for slot in children(pid))]


class Place:
    """One broker, one directory with all that the jobs write, and the workers that were started here."""

    def __init__(
        self, path: Path, url: str, exchange: str, *, queue_type: str = "classic", patience: float = PATIENCE
    ) -> None:
        self.path = path
        self.url = url
        self.exchange = exchange
        self.on_rabbitmq = url.startswith("amqp")
        clean = {name: value for name, value in os.environ.items() if not name.startswith("PALERMO_")}
        self.environment = {
            **clean,
            "PALERMO_URL": url,
            "PALERMO_EXCHANGE": exchange,
            "PALERMO_QUEUE_TYPE": queue_type,
            "PALERMO_PUBLISH_TIMEOUT": f"{patience:g}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(PROGRAMS), str(path), os.environ.get("PYTHONPATH")])),
        }
        self.client = Client(Settings(url=url, exchange=exchange, queue_type=queue_type, publish_timeout=patience))
        self.inspector = Inspector(self.client)
        self._workers: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for worker in self._workers:
            worker.end()
        self.client.close()

    # What a person does in a terminal.

    def run(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        """`palermo` with these arguments, as a process of its own."""
        return subprocess.run(
            [COMMAND, *arguments],
            env={**self.environment, **environment},
            cwd=self.path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANGS,
            check=False,
        )

    def palermo(self, *arguments: str, code: int = 0) -> str:
        """What it prints; it must end in this exit code."""
        done = self.run(*arguments)
        assert done.returncode == code, done.stderr
        return done.stdout

    def rows(self, *arguments: str) -> Any:
        """What it prints with `--json`."""
        return json.loads(self.palermo(*arguments, "--json"))

    def python(self, program: str) -> str:
        """What a program of the user's prints."""
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=self.environment,
            cwd=self.path,
            capture_output=True,
            text=True,
            timeout=HANGS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def worker(
        self,
        *arguments: str,
        modules: Sequence[str] = ("shop",),
        times: Mapping[str, float] | None = None,
        program: str = "",
        **environment: str,
    ) -> Worker:
        """A worker, which waits for other times than usual where `times` says so: see programs/impatient.py.

        `program` is another one there that stands in for the command.
        """
        if times is not None:
            program = "impatient.py"
            environment["TIMES"] = json.dumps(times)
        command = [sys.executable, str(PROGRAMS / program)] if program else [COMMAND]
        log = self.path / f"worker-{len(self._workers)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "worker", *modules, *arguments],
                # A worker waits as long as its user's does.
                env={**without(self.environment, "PALERMO_PUBLISH_TIMEOUT"), **environment},
                cwd=self.path,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        worker = Worker(process, log)
        self._workers.append(worker)
        return worker

    def ready(self, *workers: Worker) -> None:
        """Wait until these workers wait for jobs."""
        wanted = {worker.pid for worker in workers}
        eventually(lambda: wanted <= {row["pid"] for row in self.workers() if row["state"] == "idle"})

    def burst(self, *arguments: str, **more: Any) -> str:
        """Work until there is nothing to do; the worker's log."""
        worker = self.worker("--burst", *arguments, **more)
        assert worker.wait() == 0, worker.log
        return worker.log

    def enqueue(self, job: str, *args: Any, queue: str | None = None, **kwargs: Any) -> str:
        """One job by its name; its id."""
        return self.client.enqueue(job if "." in job else f"shop.{job}", args, kwargs, queue=queue).id

    # What there is to see.

    def workers(self) -> list[dict[str, Any]]:
        """Those that there are: one that does not answer within a second is silent, or is missing."""
        return self.inspector.workers()

    def only_worker(self) -> dict[str, Any]:
        """What the one worker that there is says of itself, once it answers."""
        rows = eventually(lambda: [row for row in self.workers() if row["answers"]])
        assert len(rows) == 1, rows
        return rows[0]

    def pending(self, queue: str = "jobs") -> int:
        return {row["name"]: row["pending"] for row in self.inspector.queues()}.get(queue, 0)

    def failed(self) -> dict[str, dict[str, Any]]:
        """By id."""
        return {row["id"]: row for row in self.inspector.failed(limit=10_000)}

    def errors(self) -> dict[str, str]:
        """By id: class and message."""
        return {id: f"{row['error']['class']}: {row['error']['message']}" for id, row in self.failed().items()}

    def lines(self, file: str = "notes") -> list[str]:
        """The whole lines of a file; a job may be writing another one."""
        path = self.path / file
        text = path.read_text() if path.exists() else ""
        return text[: text.rfind("\n") + 1].splitlines()

    def await_lines(self, count: int, file: str = "notes", within: float = HANGS) -> list[str]:
        """The lines of a file once it has so many."""
        eventually(lambda: len(self.lines(file)) >= count, within=within)
        return self.lines(file)

    def open_gate(self, gate: str = "gate") -> None:
        (self.path / gate).touch()

    # What another program does, on RabbitMQ.

    def get(self, queue: str) -> tuple[Any, bytes]:
        """The properties and the body of the first message, which stays where it is."""
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            channel = connection.channel()
            method, properties, body = channel.basic_get(amqp_queue(self.exchange, queue))
            assert method is not None
            channel.basic_nack(method.delivery_tag, requeue=True)
        return properties, body

    def put(self, queue: str, body: bytes, **properties: Any) -> None:
        """Publish what a program without Palermo publishes."""
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            routed = pika.BasicProperties(**properties)
            channel.basic_publish(self.exchange, queue, body, routed, mandatory=True)


def without(environment: Mapping[str, str], name: str) -> dict[str, str]:
    return {each: value for each, value in environment.items() if each != name}


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def command_line(pid: int) -> str:
    """What `ps` shows of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
