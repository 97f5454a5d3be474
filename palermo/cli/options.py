"""The options that commands share, and the parsers of durations and instants."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from palermo.cli.command_group import Context
from palermo.cli.completion import complete_job, complete_queue, complete_worker
from palermo.contract import clock

F = TypeVar("F", bound=Callable[..., Any])


def parse_duration(text: str) -> float:
    """Seconds in `90`, `90s`, `5m`, `1h30m`, `2d`. Raises click.BadParameter."""
    from palermo.core import times

    try:
        return times.parse_duration(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a duration. Write 90, 5m, 1h30m or 2d.") from None


def parse_concurrency(text: str) -> int:
    """A number of jobs at a time, from 1 on; "auto" is the processors of this process. Raises click.BadParameter."""
    if text == "auto":
        from palermo.worker.process import usable_processors

        return usable_processors()
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise click.BadParameter(f'{text!r} is neither a number from 1 on nor "auto", the processors of this machine.')
    return int(text)


def parse_instant(text: str) -> float:
    """Unix seconds of an instant in ISO 8601 with a zone. Raises click.BadParameter."""
    from palermo.core import times

    try:
        return times.parse_instant(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def parse_since(text: str) -> float:
    """Unix seconds of an instant, or of a duration before now. Raises click.BadParameter."""
    return max(0.0, _parse_time(text, ago=True))


def parse_due(text: str) -> float:
    """Unix seconds of an instant, or of a duration from now. Raises click.BadParameter."""
    return _parse_time(text, ago=False)


def _parse_time(text: str, *, ago: bool) -> float:
    from palermo.core import times

    try:
        return times.parse_time(text, clock.now(), ago=ago)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


class _CommonOption(click.Option):
    """An option that all commands take. `palermo --help` explains it, and the help of a command does not."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return super().get_help_record(ctx) if ctx.parent is None else None


class _UrlOption(_CommonOption):
    """`--url`, whose line in the help of a command leads to the other common options."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return super().get_help_record(ctx) or (
            "--url URL",
            "The broker. `palermo --help` has the other options for it.",
        )


def broker_options(command: F) -> F:
    """Add `--url`, its parts from `--host` to `--password-file`, `--exchange` and `--debug`.

    Their values are in the Context that `click.pass_obj` hands over.
    """
    return _broker_options(command, "--host", "--port", _CommonOption)


def broker_options_of_server(command: F) -> F:
    """The same for a command whose own `--host` and `--port` say where it listens: `--broker-host`, `--broker-port`."""
    return _broker_options(command, "--broker-host", "--broker-port", click.Option)


def _broker_options(command: F, host: str, port: str, place: type[click.Option]) -> F:
    def option(
        name: str, help: str, to: str = "", cls: type[click.Option] = _CommonOption, **more: Any
    ) -> Callable[[F], F]:
        def remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
            # A flag given before the subcommand counts unless the subcommand says otherwise.
            if value:
                setattr(ctx.ensure_object(Context), to or str(param.name), value)

        return click.option(name, help=help, callback=remember, expose_value=False, cls=cls, **more)

    url = "Broker: amqp[s]://…, redis[s]://… or sqlite:///file.db. Prefer PALERMO_URL for a URL with a password."
    host_help = f"RabbitMQ's host; with {port}, --user, --vhost and --password-file in place of --url."
    password_file = "The password is the first line of this file."
    command = option("--debug", "Show the traceback of an error.", is_flag=True, is_eager=True)(command)
    command = option("--exchange", "Exchange, for several systems on one broker.", metavar="NAME")(command)
    command = option("--password-file", password_file, metavar="FILE")(command)
    command = option("--vhost", "RabbitMQ's virtual host.", metavar="NAME")(command)
    command = option("--user", "RabbitMQ's user.", metavar="NAME")(command)
    command = option(port, "RabbitMQ's port.", "port", place, type=click.IntRange(1, 65_535), metavar="N")(command)
    command = option(host, host_help, "host", place, metavar="NAME")(command)
    return option("--url", url, cls=_UrlOption, metavar="URL")(command)


def query_options(command: F) -> F:
    """Add the options of the broker and `--json`."""
    json = click.option("--json", "as_json", is_flag=True, help="JSON on stdout and nothing else.")
    return broker_options(json(command))


#: Which page of a list, and how many rows a page has.
page_option = click.option("--page", type=click.IntRange(min=1), default=1, show_default=True, help="Which page.")
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many on a page."
)


def paging_options(command: F) -> F:
    """Add `--limit`, `--page` and `--newest`."""
    return limit_option(page_option(click.option("--newest", is_flag=True, help="Newest first.")(command)))


def filter_options(command: F) -> F:
    """Add the filters of `palermo failed`."""
    for name, metavar, names, help in (
        (
            "--text",
            "TEXT",
            None,
            "Only with this in the error message, the traceback, the id or the preview that the web shows.",
        ),
        ("--group", "GROUP", None, "Only of this group, as `palermo failed groups` shows it."),
        ("--error", "CLASS", None, "Only with this exception class: its dotted name or the last part of it."),
        ("--tenant", "TENANT", None, "Only of this tenant; may hold * and ?."),
        (
            "--worker",
            "WORKER",
            complete_worker,
            "Only what failed on this worker: its id, as `palermo workers` shows it; may hold * and ?.",
        ),
        ("--job", "NAME", complete_job, "Only this job; may hold * and ?."),
        ("--queue", "QUEUE", complete_queue, "Only from this queue; may hold * and ?."),
    ):
        command = click.option(name, metavar=metavar, shell_complete=names, help=help)(command)
    command = click.option(
        "--requeued", is_flag=True, default=None, help="Only what somebody had requeued, and has failed again."
    )(command)
    return click.option(
        "--since", type=parse_since, help="Only what failed since then: 2h (ago) or 2026-12-01T09:00Z.", metavar="WHEN"
    )(command)


def yes_option(command: F) -> F:
    """Add `--yes`."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)
