"""`manage.py palermo_worker`: a worker for the project's jobs, with the options of `palermo worker`."""

from typing import Any

from django.core.management.base import CommandError

from palermo.contrib.django.command_line import ClickCommand, show_worker_help, start_worker


class Command(ClickCommand):
    """Runs the jobs of all installed apps."""

    help = "Run the jobs of all installed apps. Takes the options of `palermo worker`."

    def run_click(self, arguments: list[str], folders: list[str], program: str) -> None:
        """Replace this process with the worker."""
        if {"--help", "-h"} & set(arguments):
            show_worker_help(program)
        else:
            start_worker(arguments, folders, take_over=True)

    def add_arguments(self, parser: Any) -> None:
        """Accept arguments of call_command, which runs the worker as a separate process: `call_command(NAME,
        "--burst")`.
        """
        parser.add_argument("arguments", nargs="*")

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> Any:
        """Return a parser that doesn't parse the worker's options."""
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        known = parser.parse_known_args

        def parse_args(args: Any = None, namespace: Any = None) -> Any:
            found, rest = known(args, namespace)
            found.arguments = [*found.arguments, *rest]
            return found

        parser.parse_args = parse_args
        return parser

    def handle(self, *args: Any, arguments: list[str], **options: Any) -> None:
        """Run the worker as a separate process until it ends. Raises CommandError unless its exit code is 0."""
        code = start_worker(arguments, [], take_over=False)
        if code:
            raise CommandError(f"the worker ended with exit code {code}.", returncode=code)
