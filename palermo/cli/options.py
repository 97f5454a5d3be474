"""The options that commands share, and how durations and instants are written."""

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from palermo.cli.edge import Run

F = TypeVar("F", bound=Callable[..., Any])

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)
_UNITS = (86_400.0, 3_600.0, 60.0, 1.0)


def parse_duration(text: str) -> float | None:
    """Seconds in `90`, `90s`, `5m`, `1h30m`, `2d`; None for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        return None
    return sum(float(number) * unit for number, unit in zip(found.groups(), _UNITS, strict=True) if number)


class Duration(click.ParamType):
    """A duration in seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(value) if isinstance(value, int | float) else parse_duration(value)
        if seconds is None:
            self.fail(f"{value!r} is not a duration. Write 90, 5m, 1h30m or 2d.", param, ctx)
        return seconds


class Instant(click.ParamType):
    """An instant, as Unix seconds: ISO 8601 with a zone, or a duration before now."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        ago = parse_duration(value)
        if ago is not None:
            return max(0.0, datetime.now().timestamp() - ago)
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value!r} is neither an instant nor a duration. Write 2026-12-01T09:00Z, or 2h for two hours ago.",
                param,
                ctx,
            )
        if moment.tzinfo is None:
            self.fail(f"{value!r} has no time zone. Write {value}Z or {value}+01:00.", param, ctx)
        return moment.timestamp()


def broker_options(command: F) -> F:
    """`--url`, `--exchange` and `--debug`; what they say is in the run that `click.pass_obj` hands over."""

    def remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        # A flag given before the subcommand counts unless the subcommand says otherwise.
        if value and param.name is not None:
            setattr(ctx.ensure_object(Run), param.name, value)

    def option(name: str, help: str, **more: Any) -> Callable[[F], F]:
        return click.option(name, help=help, callback=remember, expose_value=False, **more)

    url = "Broker: amqp://…, amqps://… or sqlite:///file.db. Prefer PALERMO_URL for a URL with a password."
    command = option("--debug", "Show the traceback of an error.", is_flag=True, is_eager=True)(command)
    command = option("--exchange", "Exchange, for several systems on one broker.", metavar="NAME")(command)
    return option("--url", url, metavar="URL")(command)


def json_option(command: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="JSON on stdout and nothing else.")(command)


def paging_options(command: F) -> F:
    """`--limit`, `--page` and `--newest`."""
    command = click.option("--newest", is_flag=True, help="Newest first.")(command)
    command = click.option("--page", type=click.IntRange(min=1), default=1, show_default=True, help="Which page.")(
        command
    )
    return click.option(
        "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="How many on a page."
    )(command)


def filter_options(command: F) -> F:
    """The filters of `palermo failed`."""
    for name, metavar, help in (
        ("--text", "TEXT", "Only with this in the error message, the traceback, the arguments' preview or the id."),
        ("--error", "CLASS", "Only with this exception class: its dotted name or the last part of it."),
        ("--job", "NAME", "Only this job; may hold * and ?."),
        ("--queue", "QUEUE", "Only from this queue; may hold * and ?."),
    ):
        command = click.option(name, metavar=metavar, help=help)(command)
    return click.option(
        "--since", type=Instant(), help="Only what failed since then: 2h (ago) or 2026-12-01T09:00Z.", metavar="WHEN"
    )(command)


def yes_option(command: F) -> F:
    """`--yes`."""
    return click.option("--yes", "-y", is_flag=True, help="Do not ask.")(command)
