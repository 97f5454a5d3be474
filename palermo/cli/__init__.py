"""The `palermo` command: its subcommands, each imported when it is called."""

from importlib import import_module

import click

from palermo import blocked_signals
from palermo.cli.command_group import CommandGroup, imports
from palermo.cli.options import broker_options
from palermo.core.text import nearest

#: Every command: its module and its line in `palermo --help`, which therefore imports no command.
COMMANDS: dict[str, tuple[str, str]] = {
    "worker": ("palermo.cli.worker:worker", "Run jobs."),
    "enqueue": ("palermo.cli.enqueue:enqueue", "Enqueue one job and print its id."),
    "publish": ("palermo.cli.topics:publish", "Publish an event to all subscribed groups and print its id."),
    "dequeue": ("palermo.cli.control:dequeue", "Remove waiting jobs from their queue by name and arguments."),
    "move": ("palermo.cli.control:move", "Move waiting jobs to another queue."),
    "queues": ("palermo.cli.listings:queues", "List the queues."),
    "jobs": ("palermo.cli.listings:jobs", "List the waiting jobs of a queue."),
    "tenants": ("palermo.cli.listings:tenants", "List the tenants with waiting jobs in a queue."),
    "workers": ("palermo.cli.listings:workers", "List the live workers."),
    "limits": ("palermo.cli.listings:limits", "List limits and rates with their running and waiting jobs."),
    "stats": ("palermo.cli.history:stats", "Show how many jobs ran and failed, and their wait and run times."),
    "top": ("palermo.cli.top:top", "Watch queues, workers, rates and the newest failures."),
    "failed": ("palermo.cli.failed:failed", "List, requeue or discard failed jobs."),
    "scheduled": ("palermo.cli.scheduled:scheduled", "List, cancel, run or reschedule scheduled jobs."),
    "retries": (
        "palermo.cli.scheduled:retries",
        "List jobs waiting for a retry, retry them now, or give up on them.",
    ),
    "unique": ("palermo.cli.unique:unique", "List or free the keys of unique jobs."),
    "workflows": ("palermo.cli.workflows:workflows", "List or show workflows, retry failed steps, or send signals."),
    "recurring": ("palermo.cli.recurring:recurring", "List, add, remove, enable, disable or run recurring jobs."),
    "topics": (
        "palermo.cli.topics:topics",
        "Manage the groups that subscribe to events, and replay old events.",
    ),
    "history": ("palermo.cli.history:history", "List finished jobs, or show the timeline of one."),
    "audit": ("palermo.cli.history:audit", "List the actions of operators on queues, jobs and workers."),
    "pause": ("palermo.cli.control:pause", "Pause a queue, or all queues."),
    "resume": ("palermo.cli.control:resume", "Resume a queue, or all queues."),
    "cancel": ("palermo.cli.control:cancel", "Cancel jobs: remove waiting jobs and stop running ones."),
    "control": ("palermo.cli.control:control", "Quiet, resume, stop or kill workers, or print their stacks."),
    "status": ("palermo.cli.job_status:status", "Show the state of a job."),
    "wait": ("palermo.cli.job_status:wait", "Wait for jobs to end, and print their results."),
    "purge": ("palermo.cli.control:purge", "Remove all waiting jobs from a queue."),
    "delete": ("palermo.cli.control:delete", "Remove a queue and its waiting jobs."),
    "migrate": ("palermo.cli.control:migrate", "Change the type of a queue and keep its jobs."),
    "web": ("palermo.cli.web:web", "Serve the web pages."),
    "web-user": ("palermo.cli.web:web_user", "Create a user of the web pages."),
    "check": ("palermo.cli.health:check", "Check queues and workers, for monitors and health checks."),
    "doctor": ("palermo.cli.health:doctor", "Find problems and explain how to fix them."),
    "demo": ("palermo.cli.demo:demo", "Run a demo of Palermo in this terminal."),
}


class Commands(CommandGroup):
    """The group of all commands, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            if cmd_name and not ctx.resilient_parsing:
                ctx.fail(f"No such command {cmd_name!r}.{nearest(cmd_name, COMMANDS)}")
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        if cmd_name != "worker":
            blocked_signals.unblock()
        elif blocked_signals.are_blocked():
            from palermo.worker.signals import end_before_start

            end_before_start()
        with imports():
            command: click.Command = getattr(import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(
    cls=Commands,
    epilog="Settings come from [tool.palermo] in pyproject.toml or palermo.toml, then PALERMO_* variables, then flags."
    ' Shell completion: eval "$(_PALERMO_COMPLETE=bash_source palermo)", or zsh_source, fish_source.',
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="palermo", message="%(prog)s %(version)s")
@broker_options
def main() -> None:
    """Enqueue and run jobs on RabbitMQ, Redis or SQLite, and operate queues, workers and failed jobs."""
