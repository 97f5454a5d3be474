"""`palermo worker`: runs jobs until told to stop."""

from pathlib import Path
from typing import Any

import click

from palermo.cli.command_group import Context, imports
from palermo.cli.completion import complete_queue
from palermo.cli.options import broker_options, parse_concurrency, parse_duration
from palermo.core.queue_selection import QueueSelection

_LEVELS = ("debug", "info", "warning", "error")
_FORMATS = ("text", "json")
_POOLS = ("process", "thread", "async")


@click.command()
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@click.option(
    "-q",
    "--queues",
    multiple=True,
    metavar="QUEUES",
    shell_complete=complete_queue,
    help="Queues with commas between, in strict order; *, file_* and !low work; high:5,low:1 share one place.",
)
@click.option(
    "-c",
    "--concurrency",
    type=parse_concurrency,
    default="1",
    show_default=True,
    metavar="N|auto",
    help="Jobs at a time; auto for as many as there are processors.",
)
@click.option(
    "--pool",
    type=click.Choice(_POOLS),
    default="process",
    show_default=True,
    help="What runs a job: a process each, threads of one process, or coroutines in it.",
)
@click.option(
    "--prefetch",
    type=click.IntRange(1, 1_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Jobs that a slot holds: one that runs, and others that wait for it.",
)
@click.option(
    "--scheduler/--no-scheduler",
    default=True,
    show_default=True,
    help="Bring delayed jobs to their queues when they are due, if no other worker does.",
)
@click.option("--burst", is_flag=True, help="End once all queues are empty.")
@click.option(
    "--shutdown-timeout",
    type=parse_duration,
    metavar="TIME",
    help="What running jobs get after TERM or INT; 25s unless given.",
)
@click.option(
    "--term-timeout",
    type=parse_duration,
    default="3s",
    show_default=True,
    metavar="TIME",
    help="What a job gets to clean up after JobTerminated was raised in it.",
)
@click.option(
    "--run-atexit", is_flag=True, help="Run what jobs gave to Python's atexit when their process ends by itself."
)
@click.option(
    "--resque-signals", is_flag=True, help="TERM and INT kill the running jobs at once, as in Resque; they run again."
)
@click.option("--timeout", type=parse_duration, metavar="TIME", help="What a job may take that has no timeout itself.")
@click.option(
    "--timeout-grace",
    type=parse_duration,
    default="5s",
    show_default=True,
    metavar="TIME",
    help="How long after JobTimeout was raised in it a job is killed.",
)
@click.option("--max-jobs", type=int, metavar="N", help="A fresh process for a slot after N jobs.")
@click.option("--max-memory", type=float, metavar="MB", help="Kill a job above this; a fresh process after it.")
@click.option("--max-lifetime", type=parse_duration, metavar="TIME", help="A fresh process for a slot this old.")
@click.option("--accept", multiple=True, metavar="TYPE", help="Run jobs of this serializer too, such as pickle.")
@click.option("--accept-only", multiple=True, metavar="TYPE", help="Run jobs of these serializers and no others.")
@click.option(
    "--pidfile", type=click.Path(dir_okay=False), metavar="FILE", help="Holds the worker's pid while it lives."
)
@click.option("--metrics-port", type=click.IntRange(0, 65_535), metavar="N", help="Tell Prometheus here; 0 for any.")
@click.option("--metrics-host", metavar="ADDRESS", help="Where that is.  [default: 127.0.0.1]")
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="On stderr.",
)
@click.option(
    "--log-format",
    type=click.Choice(_FORMATS, case_sensitive=False),
    default="text",
    show_default=True,
    help="One line per event: text with key=value, or a JSON object.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="So many whole workers, each with -c jobs at a time; one that dies is replaced.",
)
@click.option("--reload", is_flag=True, help="Start anew when a Python file of this folder changes; for development.")
@broker_options
@click.pass_obj
def worker(
    context: Context,
    /,
    modules: tuple[str, ...],
    queues: tuple[str, ...],
    accept: tuple[str, ...],
    accept_only: tuple[str, ...],
    metrics_port: int | None,
    metrics_host: str | None,
    log_level: str,
    log_format: str,
    workers: int,
    reload: bool,
    **options: Any,
) -> None:
    """Run the jobs of each MODULE (shop.tasks), which is imported; the current directory is importable.

    'shop.*' is a package with all modules below it. Without MODULE the setting imports names them. A job of a module
    below those given is found by its name: docs/learn/jobs.md.

    TERM and INT let running jobs finish, QUIT waits for them however long they take; a second
    INT kills them. Killed jobs run again later. USR2 pauses, CONT goes on. HUP starts anew with
    fresh code, USR1 kills the running jobs, TTIN logs their stacks: docs/reference/signals.md has the whole table.
    """
    if workers > 1 and options["pidfile"]:
        raise click.UsageError("--pidfile is for one worker; leave it out with --workers", click.get_current_context())
    selection = QueueSelection.parse(",".join(queues)) if queues else None
    settings = context.settings(metrics_port=metrics_port, metrics_host=metrics_host)
    modules = modules or tuple(settings.imports)
    if not modules:
        raise click.UsageError(
            "name the modules that hold the jobs (palermo worker shop.tasks) or set PALERMO_IMPORTS",
            click.get_current_context(),
        )
    if workers > 1 and settings.metrics_port:
        raise click.UsageError(
            f"{workers} workers cannot share --metrics-port {settings.metrics_port}; give 0 for a port for each",
            click.get_current_context(),
        )
    with imports():
        from palermo.contract.serialization import Accept
        from palermo.worker import logs
        from palermo.worker.limits import Limits
        from palermo.worker.options import WorkerMisused, WorkerOptions
        from palermo.worker.parent.run import run_worker

    # Whether these names mean something is known once the modules, which may register serializers, are imported.
    accepted = (Accept.only(*accept_only) if accept_only else Accept.default()).also(*accept)
    logs.configure(level=log_level, format=log_format)
    if workers > 1 or reload:
        from palermo.settings.environment import is_supervised
        from palermo.worker.supervisor import supervise

        if not is_supervised():
            raise click.exceptions.Exit(
                supervise(workers, restarts=not options["burst"], watched=Path.cwd() if reload else None)
            )
    limits = Limits(**{name: options.pop(name) for name in Limits.__struct_fields__})
    chosen = WorkerOptions(
        settings=settings, modules=modules, queues=selection, accept=accepted, limits=limits, **options
    )
    try:
        code = run_worker(chosen)
    except WorkerMisused as error:
        raise click.UsageError(str(error), click.get_current_context()) from error
    raise click.exceptions.Exit(code)
