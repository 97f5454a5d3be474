"""`manage.py palermo`: every command of `palermo`, with the settings and the jobs of the project."""

from palermo.contrib.django.command_line import ClickCommand, run_command, show_worker_help, start_worker


class Command(ClickCommand):
    """Runs a command of `palermo`."""

    help = "Run a command of `palermo` with this project's settings: queues, failed, web, …"

    def run_click(self, arguments: list[str], folders: list[str], program: str) -> None:
        """Run it here; a worker takes the process over."""
        if arguments[:1] != ["worker"]:
            run_command(arguments, program)
        elif {"--help", "-h"} & set(arguments):
            show_worker_help(f"{program} worker")
        else:
            start_worker(arguments[1:], folders, take_over=True)
