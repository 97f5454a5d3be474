"""`palermo check` for monitors, which use its exit code, and `palermo doctor`, which gives operators advice."""

import sys

import click

from palermo.cli.command_group import FAILED, Context, misuse
from palermo.cli.completion import complete_queue
from palermo.cli.options import parse_duration, query_options
from palermo.cli.output import is_terminal, printed_json
from palermo.contract.broker import Finding
from palermo.core.address import masked
from palermo.core.text import count, one_line

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command()
@click.option(
    "--max-pending", type=click.IntRange(min=0), metavar="N", help="Maximum number of waiting jobs in a queue."
)
@click.option(
    "--max-age", type=parse_duration, metavar="TIME", help="Maximum age of the first job in a queue, such as 90 or 5m."
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    metavar="N",
    help="Minimum number of workers; with --queue, for each queue.",
)
@click.option(
    "-q",
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="Only these queues; * and ? are wildcards. By default, all except failed.",
)
@click.option(
    "--pidfile",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Check only that the worker with this pidfile answers.",
)
@click.option(
    "--worker-pid",
    type=click.IntRange(min=1),
    metavar="PID",
    help="Check only that the worker with this process id answers.",
)
@click.option("--this-host", is_flag=True, help="Check only that a worker of this host answers, as in a container.")
@query_options
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
) -> None:
    """Check queues and workers, and print one line.

    The exit code is 0 if all checks succeed, 1 if one fails, and 3 if the broker cannot be reached. Without options,
    the command only checks that the broker answers. It takes no jobs from queues.
    """
    from palermo.inspector import check

    probes = [
        name
        for name, given in (("--pidfile", pidfile), ("--worker-pid", worker_pid), ("--this-host", this_host))
        if given
    ]
    limited = max_pending is not None or max_age is not None or workers is not None or bool(queues)
    if len(probes) > 1 or (probes and limited):
        raise misuse(f"{probes[0]} checks one worker and cannot be combined with other options")
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
    context.shown = found.line()
    if not printed_json(found.row()):
        click.echo(one_line(f"{'ok' if found.ok else 'problem'}: {found.line()}"))
    raise click.exceptions.Exit(0 if found.ok else FAILED)


# -- doctor


@click.command()
@click.option("--mend", is_flag=True, help="Free keys held by unique jobs that no longer exist.")
@query_options
@click.pass_obj
def doctor(context: Context, /, mend: bool) -> None:
    """Check versions, settings, permissions, queues, alarms and disks, and explain how to fix problems.

    The command publishes a job to a temporary queue, takes it, and removes the queue. The exit code is 0 if there are
    no problems, otherwise 1. Warnings do not change it.
    """
    from palermo.inspector.doctor import examine, row
    from palermo.settings.environment import colours_refused
    from palermo.settings.settings import setting_origins

    client = context.client()
    found = examine(client, setting_origins(url=context.broker_url, exchange=context.exchange), mend=mend)
    context.shown = " ".join(finding.text for finding in found)
    if not printed_json([row(finding) for finding in found]):
        coloured = is_terminal(sys.stdout) and not colours_refused()
        for finding in found:
            _show(finding, coloured=coloured)
        counts = {level: sum(finding.level == level for finding in found) for level in ("problem", "warning")}
        click.echo(f"{count(counts['problem'], 'problem')}, {count(counts['warning'], 'warning')}.")
        if any(len(finding.names) > 1 for finding in found):
            click.echo("`palermo doctor --json` lists all names.")
    raise click.exceptions.Exit(FAILED if any(finding.level == "problem" for finding in found) else 0)


def _show(finding: Finding, *, coloured: bool) -> None:
    level = finding.level.ljust(7)
    if coloured:
        level = click.style(level, fg=_COLOURS[finding.level])
    click.echo(f"{level}  {one_line(masked(f'{finding.check}: {finding.text}'))}")
    if finding.advice:
        click.echo(f"{' ' * 9}-> {one_line(masked(finding.advice))}")
