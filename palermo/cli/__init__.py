"""The command `palermo`: its subcommands, each loaded when it is called."""

from importlib import import_module

import click

from palermo import blocked_signals
from palermo.cli.command_group import CommandGroup, imports
from palermo.cli.options import broker_options
from palermo.core.text import nearest

#: Every command: where it lives, and its line in `palermo --help`. Nothing is imported to show them.
COMMANDS: dict[str, tuple[str, str]] = {
    "worker": ("palermo.cli.worker:worker", "Run jobs."),
    "enqueue": ("palermo.cli.enqueue:enqueue", "Enqueue one job and print its id."),
    "publish": ("palermo.cli.topics:publish", "Tell an event to all groups that subscribe, and print its id."),
    "dequeue": ("palermo.cli.queue_actions:dequeue", "Take waiting jobs out of their queue by name and arguments."),
    "queues": ("palermo.cli.listings:queues", "List the queues."),
    "jobs": ("palermo.cli.listings:jobs", "List the jobs that wait in a queue."),
    "tenants": ("palermo.cli.listings:clients", "List the tenants that have jobs waiting in a queue."),
    "clients": ("palermo.cli.listings:clients", "The same as tenants."),
    "workers": ("palermo.cli.listings:workers", "List the workers that are alive."),
    "limits": ("palermo.cli.listings:limits", "List what limits and rates hold back."),
    "stats": ("palermo.cli.history:stats", "Say how many jobs were processed and failed, and how long they took."),
    "top": ("palermo.cli.top:top", "Watch queues, workers, rates and the newest failures."),
    "failed": ("palermo.cli.failed:failed", "Look at failed jobs, requeue or discard them."),
    "scheduled": ("palermo.cli.scheduled:scheduled", "Look at jobs that are due later, and change them."),
    "retries": (
        "palermo.cli.scheduled:retries",
        "Look at jobs that wait to be tried again; run them now, give them up.",
    ),
    "unique": ("palermo.cli.unique:unique", "Look at the keys of unique jobs, and free some."),
    "recurring": ("palermo.cli.recurring:recurring", "Look at jobs that run again and again, and change them."),
    "topics": ("palermo.cli.topics:topics", "See who subscribes to which events; tell old ones again."),
    "history": ("palermo.cli.history:history", "List finished jobs, or tell all that is known of one."),
    "audit": ("palermo.cli.history:audit", "List who did what to queues, jobs and workers, and when."),
    "pause": ("palermo.cli.control:pause", "Have no worker take jobs from a queue, or from any, until it is resumed."),
    "resume": ("palermo.cli.control:resume", "End the pause of a queue, or of all."),
    "cancel": ("palermo.cli.control:cancel", "Have jobs not run, or end where they run."),
    "control": ("palermo.cli.control:control", "Quiet, resume, stop or kill workers, or see what they are doing."),
    "status": ("palermo.cli.job_status:status", "Say where a job is, or how it ended."),
    "wait": ("palermo.cli.job_status:wait", "Wait for jobs to end, and show what they returned."),
    "purge": ("palermo.cli.queue_actions:purge", "Remove all jobs that wait in a queue."),
    "delete": ("palermo.cli.queue_actions:delete", "Remove a queue and the jobs that wait in it."),
    "migrate": ("palermo.cli.queue_actions:migrate", "Make a queue one of another type, with all jobs in it."),
    "web": ("palermo.cli.web:web", "Serve the web pages."),
    "web-user": ("palermo.cli.web:web_user", "Make a user of the web pages."),
    "check": ("palermo.cli.health:check", "Say whether all is well, for monitors and health checks."),
    "doctor": ("palermo.cli.health:doctor", "Say what is wrong here and what to do about it."),
    "demo": ("palermo.cli.demo:demo", "Watch the whole thing work, in this terminal."),
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
    """Jobs on RabbitMQ: enqueue them, work on them, look at what failed, requeue it."""
