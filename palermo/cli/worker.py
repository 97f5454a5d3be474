"""`palermo worker`: runs jobs until it is stopped."""

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
    help="Queues in strict order, separated by commas. Patterns (*, file_*, !low) and weights (high:5) are allowed.",
)
@click.option(
    "-c",
    "--concurrency",
    type=parse_concurrency,
    default="1",
    show_default=True,
    metavar="N|auto",
    help="Number of jobs to run at once; auto is the number of processors.",
)
@click.option(
    "--pool",
    type=click.Choice(_POOLS),
    default="process",
    show_default=True,
    help="Run each job in its own process, in a thread, or as a coroutine.",
)
@click.option(
    "--prefetch",
    type=click.IntRange(1, 1_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Maximum number of jobs per slot: one running, the others waiting.",
)
@click.option(
    "--scheduler/--no-scheduler",
    default=True,
    show_default=True,
    help="Move scheduled jobs to their queues when they are due, unless another worker does.",
)
@click.option("--burst", is_flag=True, help="Exit once all queues are empty.")
@click.option(
    "--shutdown-timeout",
    type=parse_duration,
    metavar="TIME",
    help="Time for running jobs to finish after TERM or INT.  [default: 25s]",
)
@click.option(
    "--term-timeout",
    type=parse_duration,
    default="3s",
    show_default=True,
    metavar="TIME",
    help="Time for a job to clean up after JobTerminated is raised in it.",
)
@click.option("--run-atexit", is_flag=True, help="Run the atexit functions of jobs when their process exits normally.")
@click.option(
    "--resque-signals",
    is_flag=True,
    help="On TERM or INT, kill running jobs immediately, as Resque does; they run again later.",
)
@click.option("--timeout", type=parse_duration, metavar="TIME", help="Default timeout for jobs without one.")
@click.option(
    "--timeout-grace",
    type=parse_duration,
    default="5s",
    show_default=True,
    metavar="TIME",
    help="Time between raising JobTimeout in a job and killing it.",
)
@click.option("--max-jobs", type=int, metavar="N", help="Replace the process of a slot after N jobs.")
@click.option("--max-memory", type=float, metavar="MB", help="Kill a job that uses more memory than this.")
@click.option(
    "--max-lifetime", type=parse_duration, metavar="TIME", help="Replace the process of a slot after this time."
)
@click.option("--accept", multiple=True, metavar="TYPE", help="Also run jobs that use this serializer, such as pickle.")
@click.option(
    "--accept-only", multiple=True, metavar="TYPE", help="Run only jobs that use this serializer. May be repeated."
)
@click.option(
    "--pidfile",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write the worker's pid to this file while it runs.",
)
@click.option(
    "--metrics-port", type=click.IntRange(0, 65_535), metavar="N", help="Port to serve metrics on; 0 picks a free port."
)
@click.option("--metrics-host", metavar="ADDRESS", help="Address to serve metrics on.  [default: 127.0.0.1]")
@click.option(
    "--log-level",
    type=click.Choice(_LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="Log level on stderr.",
)
@click.option(
    "--log-format",
    type=click.Choice(_FORMATS, case_sensitive=False),
    default="text",
    show_default=True,
    help="Format of a log line: text with key=value, or a JSON object.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of workers, each with -c slots. If one dies, it is replaced.",
)
@click.option(
    "--reload", is_flag=True, help="Restart when a Python file in the current directory changes; for development."
)
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
    """Run the jobs of each MODULE, such as shop.tasks, which is imported from the current directory or the Python path.

    'shop.*' stands for a package and all modules below it. Without MODULE, the `imports` setting applies. Other modules
    of these packages are imported when one of their jobs arrives.

    TERM and INT let running jobs finish; a second INT kills them. QUIT waits for them without a limit. Killed jobs run
    again later. USR2 pauses the worker; CONT resumes it. HUP restarts the worker with fresh code, USR1 kills the
    running jobs, and TTIN logs their stacks. docs/reference/signals.md lists all signals.
    """
    if workers > 1 and options["pidfile"]:
        raise click.UsageError(
            "--pidfile names the file of a single worker and cannot be combined with --workers",
            click.get_current_context(),
        )
    selection = QueueSelection.parse(",".join(queues)) if queues else None
    settings = context.settings(metrics_port=metrics_port, metrics_host=metrics_host)
    modules = modules or tuple(settings.imports)
    if not modules:
        raise click.UsageError(
            "no module given; name the modules with the jobs (palermo worker shop.tasks) or set PALERMO_IMPORTS",
            click.get_current_context(),
        )
    if workers > 1 and settings.metrics_port:
        raise click.UsageError(
            f"{workers} workers cannot share --metrics-port {settings.metrics_port}; give 0 to let each pick a port",
            click.get_current_context(),
        )
    with imports():
        from palermo.contract.serialization import Accept
        from palermo.worker import logs
        from palermo.worker.limits import Limits
        from palermo.worker.options import WorkerMisused, WorkerOptions
        from palermo.worker.parent.run import run_worker

    # Serializer names are checked after the modules are imported, because a module may register one.
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
        run_worker(chosen)
    except WorkerMisused as error:
        raise click.UsageError(str(error), click.get_current_context()) from error
