"""`palermo demo`: the whole thing in one terminal."""

import click

from palermo.cli.edge import Run
from palermo.cli.options import broker_options


@click.command()
@broker_options
@click.pass_obj
def demo(run: Run) -> None:
    """Run jobs on the embedded broker, or with --url on another: group the failures, requeue one, and end."""
    from palermo.demo.run import run_demo

    raise click.exceptions.Exit(run_demo(run.settings() if run.url else None))
