"""Runs `palermo demo`: prepares a broker and a worker, runs the steps, and cleans up."""

import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from palermo.client.client import Client
from palermo.core.address import masked
from palermo.core.topology import DEFAULT_EXCHANGE
from palermo.demo.screen import Screen
from palermo.demo.steps import DemoFailed, DemoSteps, last_line
from palermo.errors import NotFound
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from palermo.worker.handle import WorkerHandle, start_worker
from palermo.worker.options import WorkerFailed

#: The exchange that separates the demo's queues from others on an existing broker.
EXCHANGE = "palermo-demo"

#: Seconds for running jobs when the demo ends or is interrupted.
_STOP_TIMEOUT = 10.0


class DemoOptions(Struct, frozen=True, kw_only=True):
    #: None means an embedded broker on a file of its own.
    url: str | None = None
    #: The exchange whose queues are removed before and after the demo. Not used without a URL.
    exchange: str = EXCHANGE
    slots: int = 2
    #: Maximum number of files from the standard library.
    files: int = 600
    #: Whether to keep the broker's queues or file.
    keep: bool = False
    #: Port for the web pages after the steps; None to end there.
    web: int | None = None
    #: The command that the user ran.
    program: str = "palermo"

    def settings(self, directory: Path) -> Settings:
        """Return the settings of client and worker. Doesn't use Settings.load, because configured settings are for the
        user's own jobs.
        """
        if self.url is not None:
            return Settings(url=self.url, exchange=self.exchange)
        return Settings(url=f"sqlite:///{quote(str(directory / 'demo.db'))}", exchange=DEFAULT_EXCHANGE)


def run_demo(options: DemoOptions, screen: Screen) -> None:
    """Run the demo. Raises DemoFailed if a step fails, and BrokerError if the broker can't be used."""
    started = time.monotonic()
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="palermo-demo-"))
        if options.url is not None or not options.keep:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        settings = options.settings(directory)
        # Opened before the steps, so that a port in use is reported immediately.
        at = None if options.web is None else stack.enter_context(listening_on(options.web))
        client = stack.enter_context(Client(settings))
        inspector = Inspector(client)
        refuse_other_workers(inspector)
        clear(inspector)
        if not options.keep:
            stack.callback(clear, inspector)
        screen.step(f"Palermo, on {settings.address}")
        screen.line("A worker runs the jobs of palermo/demo/jobs.py: each parses one Python file.")
        screen.line("The commands that are shown work in another terminal too, while this runs, with", style="dim")
        screen.line(flags(settings), style="dim")
        log = directory / "worker.log"
        steps = DemoSteps(client, screen, program=options.program, log=log)
        steps.enqueue(options.files)
        with worker_of(settings, slots=options.slots, log=log) as worker:
            steps.work(worker, slots=options.slots)
            steps.show_failures()
            steps.requeue_corrected(worker)
            steps.requeue_unchanged(worker)
            if at is not None:
                serve_pages(settings, screen, at)
    screen.step(f"Everything worked as expected, in {time.monotonic() - started:.0f} s. Try next")
    for command, meaning in next_commands(options, settings, directory):
        screen.command(command, meaning)


def listening_on(port: int) -> socket.socket:
    """Return a socket on the loopback address. Raises SettingInvalid."""
    from palermo.webui.server import open_socket

    return open_socket("127.0.0.1", port)


def serve_pages(settings: Settings, screen: Screen, at: socket.socket) -> None:
    """Serve the web pages until Ctrl-C. The worker continues, so that jobs requeued there run."""
    from palermo.webui import create_app
    from palermo.webui.security.local_access import LocalAccess, new_token
    from palermo.webui.server import pages_url, serve

    host, port = at.getsockname()[:2]
    token = new_token()
    screen.step(f"See it in a browser: {pages_url(host, port, token=token)}")
    screen.line("Ctrl-C ends it", style="dim")
    serve(create_app(settings=settings, auth=LocalAccess(token)), host=host, port=port, at=at)


def refuse_other_workers(inspector: Inspector) -> None:
    """Raise DemoFailed if there is a worker, because the demo would take its jobs."""
    for worker in inspector.workers.list():
        raise DemoFailed(f"worker {worker['id']} of another demo is running on this broker. Try again when it is done.")


def clear(inspector: Inspector) -> None:
    """Remove all queues of the demo's exchange."""
    for queue in inspector.queues.list():
        with suppress(NotFound):
            inspector.queues.delete(queue["name"])


@contextmanager
def worker_of(settings: Settings, *, slots: int, log: Path) -> Iterator[WorkerHandle]:
    """Start a worker in its own process with its log in a file, and stop it at the end."""
    with log.open("ab") as file:
        try:
            worker = start_worker(["palermo.demo.jobs"], concurrency=slots, log=file, settings=settings)
        except WorkerFailed as error:
            raise DemoFailed(f"the worker has ended: {last_line(log)}") from error
    try:
        yield worker
    finally:
        worker.stop(_STOP_TIMEOUT)


def flags(settings: Settings) -> str:
    """Return the flags with which commands use the same broker. A password is shown as "***"."""
    url = masked(settings.url)
    if settings.address.username == settings.address.password == "guest":
        url = settings.url.replace("guest:guest@", "", 1)
    exchange = "" if settings.exchange == DEFAULT_EXCHANGE else f" --exchange {settings.exchange}"
    return f"--url {shlex.quote(url)}{exchange}"


def next_commands(options: DemoOptions, settings: Settings, directory: Path) -> Iterator[tuple[str, str]]:
    """Yield commands to try next, with their purposes."""
    program, given = options.program, flags(settings)
    if options.keep:
        yield f"{program} failed list {given}", "the failed jobs of this demo"
        yield f"{program} failed requeue --all {given}", ""
        yield f"{program} worker palermo.demo.jobs --burst {given}", "until the queues are empty"
        yield f"{program} queues {given}", ""
    else:
        again = f" {given}" if options.url is not None else ""
        yield f"{program} demo --keep{again}", "keeps its queues, and prints how to inspect them"
    if options.url is None:
        if options.keep:
            yield f"rm -r {shlex.quote(str(directory))}", "when you have finished"
        yield f"{program} demo --url amqp://localhost:5672/", "the same on RabbitMQ"
    yield f"{program} --help", ""
