"""`palermo doctor`: says what is wrong here, and what to do about it."""

import sys

import click

from palermo.cli.command_group import FAILED, Context
from palermo.cli.options import broker_options, json_option
from palermo.cli.output import is_terminal, print_json
from palermo.contract.broker import Finding
from palermo.core.address import masked
from palermo.core.text import one_line

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@click.command()
@click.option("--mend", is_flag=True, help="Free keys of unique jobs that are nowhere.")
@broker_options
@json_option
@click.pass_obj
def doctor(context: Context, /, mend: bool, as_json: bool) -> None:
    """Look at versions, settings, permissions, queues, alarms and disks, and say what to do about what is wrong.

    Publishing and taking a job are tried on a queue of the doctor's own, which is removed.
    Exit code 0 where nothing is a problem, else 1; a warning may be as you want it.
    """
    from palermo.inspector.doctor import examine, row
    from palermo.settings.environment import colours_refused
    from palermo.settings.settings import setting_origins

    client = context.client()
    found = examine(client, setting_origins(url=context.url, exchange=context.exchange), mend=mend)
    if as_json:
        print_json([row(finding) for finding in found])
    else:
        coloured = is_terminal(sys.stdout) and not colours_refused()
        for finding in found:
            _show(finding, coloured=coloured)
        counts = {level: sum(finding.level == level for finding in found) for level in ("problem", "warning")}
        click.echo(f"{counts['problem']} problem(s), {counts['warning']} warning(s).")
    raise click.exceptions.Exit(FAILED if any(finding.level == "problem" for finding in found) else 0)


def _show(finding: Finding, *, coloured: bool) -> None:
    level = finding.level.ljust(7)
    if coloured:
        level = click.style(level, fg=_COLOURS[finding.level])
    click.echo(f"{level}  {one_line(masked(f'{finding.check}: {finding.text}'))}")
    if finding.advice:
        click.echo(f"{' ' * 9}-> {one_line(masked(finding.advice))}")
