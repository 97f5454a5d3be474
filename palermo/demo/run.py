"""`palermo demo` from its first line to its last: the stage is set, the story told, and everything put away again."""

import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from palermo.cli.edge import masked
from palermo.client import Client
from palermo.config import Settings
from palermo.core.topology import DEFAULT_EXCHANGE
from palermo.core.values import dataclass
from palermo.demo.show import Screen
from palermo.demo.story import DemoFailed, Story
from palermo.errors import NotFound
from palermo.inspector import Inspector
from palermo.worker.handle import WorkerHandle, start_worker

#: Keeps the demo's queues apart from everybody's, on a broker that is not its own.
EXCHANGE = "palermo-demo"

#: Seconds that the worker gets for the jobs it runs when the demo ends, or is interrupted.
_PATIENCE = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the demo was told."""

    #: None for the embedded broker, on a file of the demo's own.
    url: str | None = None
    #: Everything in it is removed, before and after; without a URL the file is the demo's own, and so needs none.
    exchange: str = EXCHANGE
    slots: int = 2
    #: How many files of the standard library at most; None for all.
    files: int | None = None
    #: Whether the broker's queues, or its file, are left to be looked at.
    keep: bool = False
    #: The port on which the pages are served once all has been shown; None to end there.
    web: int | None = None
    #: How the user calls the command line.
    program: str = "palermo"

    def settings(self, directory: Path) -> Settings:
        """What client and worker share. Not Settings.load: what is configured is meant for the user's own jobs."""
        if self.url is not None:
            return Settings(url=self.url, exchange=self.exchange)
        return Settings(url=f"sqlite:///{quote(str(directory / 'demo.db'))}", exchange=DEFAULT_EXCHANGE)


def run_demo(options: Options, screen: Screen) -> None:
    """Tell the story. Raises DemoFailed if it went otherwise, and BrokerError for a broker that cannot be used."""
    started = time.monotonic()
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="palermo-demo-"))
        if options.url is not None or not options.keep:
            stack.callback(shutil.rmtree, directory, ignore_errors=True)
        settings = options.settings(directory)
        # Taken before the show: a port that somebody has is better known now.
        at = None if options.web is None else stack.enter_context(listening_on(options.web))
        client = stack.enter_context(Client(settings))
        inspector = Inspector(client)
        refuse_company(inspector)
        clear(inspector)
        if not options.keep:
            stack.callback(clear, inspector)
        screen.step(f"Palermo, on {settings.address}")
        screen.line("The commands shown work in another terminal too, with", style="dim")
        screen.line(environment(settings), style="dim")
        log = directory / "worker.log"
        story = Story(client, screen, program=options.program, log=log)
        story.enqueue(options.files)
        with worker_of(settings, slots=options.slots, log=log) as worker:
            story.work(worker, slots=options.slots)
            story.look()
            story.mend(worker)
            story.try_again(worker)
            if at is not None:
                serve_pages(settings, screen, at)
    screen.step(f"All as it should be, in {time.monotonic() - started:.0f} s. Try next")
    for command, meaning in next_commands(options, settings, directory):
        screen.command(command, meaning)


def listening_on(port: int) -> socket.socket:
    """A socket on this machine's own address. Raises SettingInvalid."""
    from palermo.webui.server import listening

    return listening("127.0.0.1", port)


def serve_pages(settings: Settings, screen: Screen, at: socket.socket) -> None:
    """Serve the web pages until Ctrl-C; the worker goes on, so that what is requeued there runs."""
    from palermo.webui import create_app
    from palermo.webui.server import serve

    host, port = at.getsockname()[:2]
    screen.step(f"See it in a browser: http://{host}:{port}/")
    screen.line("Ctrl-C ends it", style="dim")
    serve(create_app(settings=settings), host=host, port=port, at=at)


def refuse_company(inspector: Inspector) -> None:
    """Raises DemoFailed if a worker is there, whose jobs the demo would take away."""
    for worker in inspector.workers():
        raise DemoFailed(f"worker {worker['id']} of another demo is at work on this broker. Try again when it is done.")


def clear(inspector: Inspector) -> None:
    """Remove every queue of the demo's exchange."""
    for queue in inspector.queues():
        with suppress(NotFound):
            inspector.delete_queue(queue["name"])


@contextmanager
def worker_of(settings: Settings, *, slots: int, log: Path) -> Iterator[WorkerHandle]:
    """A worker in a process of its own that writes its log to a file; stopped at the end, whatever happens."""
    with log.open("ab") as file:
        worker = start_worker(["palermo.demo.jobs"], concurrency=slots, log=file, settings=settings)
    try:
        yield worker
    finally:
        worker.stop(_PATIENCE)


def environment(settings: Settings) -> str:
    """The variables with which the commands of another terminal reach the same queues."""
    variables = [f"PALERMO_URL={typed(settings)}"]
    if settings.exchange != DEFAULT_EXCHANGE:
        variables.append(f"PALERMO_EXCHANGE={settings.exchange}")
    return " ".join(variables)


def next_commands(options: Options, settings: Settings, directory: Path) -> Iterator[tuple[str, str]]:
    """What to try next, and what it is good for."""
    program, url = options.program, typed(settings)
    flags = f"--url {url}" + ("" if settings.exchange == DEFAULT_EXCHANGE else f" --exchange {settings.exchange}")
    if options.keep:
        yield f"{program} failed list {flags}", "what this demo left"
        yield f"{program} failed requeue --all {flags}", ""
        yield f"{program} worker palermo.demo.jobs --burst {flags}", "until the queues are empty"
        yield f"{program} queues {flags}", ""
    else:
        again = f" {flags}" if options.url is not None else ""
        yield f"{program} demo --keep{again}", "leaves its queues there, and says how to look at them"
    if options.url is None:
        if options.keep:
            yield f"rm -r {shlex.quote(str(directory))}", "once you have seen enough"
        yield f"{program} demo --url amqp://localhost:5672/", "the same on RabbitMQ"
    yield f"{program} --help", ""


def typed(settings: Settings) -> str:
    """The broker's URL as it is typed again in a shell: a password is "***", to be filled in by whoever knows it."""
    address = settings.address
    if address.username == address.password == "guest":
        return shlex.quote(settings.url.replace("guest:guest@", "", 1))
    return shlex.quote(masked(settings.url))
