"""`palermo check`: says by its exit code whether all is well, for monitors and health checks."""

import click

from palermo.cli.command_group import FAILED, Context
from palermo.cli.options import broker_options, json_option, parse_duration
from palermo.cli.output import print_json
from palermo.core.text import one_line


@click.command()
@click.option("--max-pending", type=click.IntRange(min=0), metavar="N", help="No queue holds more waiting jobs.")
@click.option(
    "--max-age", type=parse_duration, metavar="TIME", help="No queue's first job was created longer ago (90, 5m)."
)
@click.option(
    "--workers", type=click.IntRange(min=0), metavar="N", help="So many workers at least; with --queue, for each queue."
)
@click.option(
    "-q", "--queue", "queues", multiple=True, metavar="QUEUE", help="Only these; may hold * and ?. Else all but failed."
)
@click.option(
    "--pidfile",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Ask only whether the worker with this pidfile answers.",
)
@click.option("--worker-pid", type=click.IntRange(min=1), metavar="PID", help="The same, by the worker's process id.")
@click.option("--this-host", is_flag=True, help="The same for any worker of this host: for containers.")
@broker_options
@json_option
@click.pass_obj
def check(
    context: Context,
    /,
    max_pending: int | None,
    max_age: float | None,
    workers: int | None,
    queues: tuple[str, ...],
    pidfile: str | None,
    worker_pid: int | None,
    this_host: bool,
    as_json: bool,
) -> None:
    """Say in one line whether all is well: exit code 0 if it is, 1 if not, 3 if the broker cannot be reached.

    Without options it asks only whether the broker answers. It takes no job from a queue.
    """
    from palermo.inspector import check

    probes = [
        name
        for name, given in (("--pidfile", pidfile), ("--worker-pid", worker_pid), ("--this-host", this_host))
        if given
    ]
    limited = max_pending is not None or max_age is not None or workers is not None or bool(queues)
    if len(probes) > 1 or (probes and limited):
        raise click.UsageError(
            f"{probes[0]} asks about one worker and goes with no other option", click.get_current_context()
        )
    if pidfile is not None:
        worker_pid = check.read_pidfile(pidfile)
    if pidfile is not None and worker_pid is None:
        found = check.CheckResult(problems=(f"no worker runs with pidfile {pidfile}: there is no such file",))
    elif worker_pid is not None:
        found = check.check_worker(context.inspector(), worker_pid)
    elif this_host:
        found = check.check_host(context.inspector())
    else:
        limits = check.Limits(max_pending=max_pending, max_age=max_age, workers=workers, queues=queues)
        found = check.check(context.inspector(), limits)
    if as_json:
        print_json(found.row())
    else:
        click.echo(one_line(f"{'ok' if found.ok else 'problem'}: {found.line()}"))
    raise click.exceptions.Exit(0 if found.ok else FAILED)
