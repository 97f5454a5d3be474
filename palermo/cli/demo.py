"""`palermo demo`: shows Palermo's main features in one terminal."""

import shlex
import shutil
import sys
from pathlib import Path

import click

from palermo.cli.command_group import Context, misuse
from palermo.cli.options import broker_options_of_server


@click.command()
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Number of jobs to run at once.",
)
@click.option(
    "--files",
    type=click.IntRange(min=0),
    default=600,
    show_default=True,
    metavar="N",
    help="Maximum number of files of the standard library; each is a job.",
)
@click.option("--keep", is_flag=True, help="Keep the queues, and print how to inspect them.")
@click.option("--web", is_flag=True, help="Serve the web pages afterwards, until Ctrl-C.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=3000,
    show_default=True,
    help="Port of the web pages; 0 picks a free port.",
)
@broker_options_of_server
@click.pass_obj
def demo(context: Context, concurrency: int, files: int, keep: bool, web: bool, port: int) -> None:
    """Run jobs, group the failures and requeue one, on the embedded broker or, with --url, on another.

    Each job parses a file of Python's standard library; some files are damaged. With --url, the demo uses the
    separate exchange palermo-demo and removes its queues at the end.
    """
    from palermo.demo.runner import EXCHANGE, DemoOptions, run_demo
    from palermo.demo.screen import Screen

    exchange = context.exchange or EXCHANGE
    if not exchange.startswith(EXCHANGE):
        raise misuse(
            f"the demo deletes everything in its exchange; choose one that begins with {EXCHANGE}, or leave --exchange"
            " out"
        )
    options = DemoOptions(
        url=context.broker_url,
        exchange=exchange,
        slots=concurrency,
        files=files,
        keep=keep,
        web=port if web else None,
        program=_program(),
    )
    if options.url:
        context.settings()  # raises for a broker that the command line can't use
    run_demo(options, Screen())


def _program() -> str:
    """Return a shell command that runs this command line again: its name if that is on the PATH, otherwise its path."""
    called = Path(sys.argv[0])
    if called.name != "palermo":
        return f"{shlex.quote(sys.executable)} -m palermo"
    found = shutil.which("palermo")
    return "palermo" if found and Path(found).resolve() == called.resolve() else shlex.quote(str(called))
