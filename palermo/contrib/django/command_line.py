"""Runs `palermo` commands through `manage.py`, and determines a worker's settings, modules and options."""

import sys
from abc import abstractmethod
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence

import click
from django.apps import apps
from django.core.management.base import BaseCommand

from palermo.cli import main
from palermo.cli.worker import worker
from palermo.contrib.django.configuration import configuration
from palermo.contrib.worker_command import become_worker, run_worker_process
from palermo.settings.settings import Settings

#: The module that sets up Django in a worker.
AUTOLOAD = "palermo.contrib.django.autoload"


def own_options(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments that Django has not parsed, and the folders of `--pythonpath`."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--settings")
    parser.add_argument("--pythonpath")
    known, rest = parser.parse_known_args(list(arguments))
    return rest, [known.pythonpath] if known.pythonpath else []


def run_command(arguments: Sequence[str], program: str) -> None:
    """Run `palermo` with these arguments in this process, and exit."""
    # click and the process title use sys.argv; a password in a URL is masked in the title.
    sys.argv = [program, *arguments]
    main.main(prog_name=program)


def show_worker_help(program: str) -> None:
    """Print the worker's options."""
    with click.Context(worker, info_name=program) as context:
        click.echo(worker.get_help(context))


def start_worker(arguments: Sequence[str], folders: Iterable[str], *, take_over: bool) -> int:
    """Start the project's worker, either replacing this process or as a child whose exit code is returned."""
    settings = Settings.load()
    modules = (AUTOLOAD, *job_modules(), *settings.imports)
    # The folder of manage.py, from which apps are imported.
    paths = [*folders, *([sys.path[0]] if sys.path and sys.path[0] else [])]
    if take_over:
        become_worker(settings, modules, arguments, folders=paths)
    return run_worker_process(settings, modules, arguments, folders=paths)


def job_modules() -> list[str]:
    """Return the modules of installed apps that may declare jobs, sorted."""
    names = [f"{app.name}.{module}" for app in apps.get_app_configs() for module in configuration().autodiscover]
    return sorted(name for name in names if name in sys.modules)


class ClickCommand(BaseCommand):
    """A management command whose options are parsed by click instead of argparse."""

    requires_system_checks: list[str] = []  # noqa: RUF012 - Django's own way to ask for none

    def run_from_argv(self, argv: list[str]) -> None:
        """Run with the arguments after `manage.py NAME`."""
        program = f"{argv[0].replace(chr(92), '/').rpartition('/')[2]} {argv[1]}"
        arguments, folders = own_options(argv[2:])
        self.run_click(arguments, folders, program)

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Called by `manage.py help NAME`."""
        self.run_click(["--help"], [], f"{prog_name} {subcommand}")

    @abstractmethod
    def run_click(self, arguments: list[str], folders: list[str], program: str) -> None:
        """Run the command with these arguments."""
