"""`manage.py palermo`: all commands of `palermo`, with the project's settings and jobs."""

from palermo.contrib.django.command_line import ClickCommand, run_command, start_worker
from palermo.contrib.worker_command import worker_arguments


class Command(ClickCommand):
    """Runs a command of `palermo`."""

    help = "Run a command of `palermo` with this project's settings: queues, failed, web, …"

    def run_click(self, arguments: list[str], folders: list[str], program: str) -> None:
        """Run it in this process, which a worker takes over."""
        given = worker_arguments(arguments)
        if given is None:
            run_command(arguments, program)
        else:
            start_worker(given, folders, take_over=True)
