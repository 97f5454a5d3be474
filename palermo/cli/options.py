"""Options shared by several commands, and the parsers of durations and instants."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import click

from palermo.cli.command_group import Context, misuse
from palermo.cli.completion import complete_job, complete_queue, complete_worker
from palermo.contract import clock
from palermo.core import times

if TYPE_CHECKING:
    from palermo.views.filter import JobFilter

F = TypeVar("F", bound=Callable[..., Any])


def parse_duration(text: str) -> float:
    """Return the seconds of `90`, `90s`, `5m`, `1h30m` or `2d`. Raises click.BadParameter."""
    try:
        return times.parse_duration(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a duration. Write 90, 5m, 1h30m or 2d.") from None


def parse_concurrency(text: str) -> int:
    """Return a number of slots; "auto" means the number of processors available to this process. Raises
    click.BadParameter.
    """
    if text == "auto":
        from palermo.worker.process import usable_processors

        return usable_processors()
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise click.BadParameter(f'{text!r} is invalid; give a number from 1, or "auto" for the number of processors.')
    return int(text)


def parse_instant(text: str) -> float:
    """Return an ISO 8601 instant with a time zone as Unix seconds. Raises click.BadParameter."""
    return _checked(times.parse_instant, text)


def parse_since(text: str) -> float:
    """Return an instant, or a duration before now, as Unix seconds. Raises click.BadParameter."""
    return max(0.0, _checked(times.parse_time, text, clock.now(), ago=True))


def _checked(parse: Callable[..., float], *values: Any, **more: Any) -> float:
    try:
        return parse(*values, **more)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


class _CommonOption(click.Option):
    """An option of every command. Only `palermo --help` describes it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return super().get_help_record(ctx) if ctx.parent is None else None


class _UrlOption(_CommonOption):
    """`--url`, whose help line mentions the other common options."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        return super().get_help_record(ctx) or (
            "--url URL",
            "The broker. `palermo --help` lists the other broker options.",
        )


def broker_options(command: F) -> F:
    """Add `--url`, its parts from `--host` to `--password-file`, `--exchange` and `--debug`.

    The values are in the Context that `click.pass_obj` passes.
    """
    return _broker_options(command, "--host", "--port", _CommonOption)


def broker_options_of_server(command: F) -> F:
    """Like `broker_options`, but with `--broker-host` and `--broker-port`, since the command listens on `--host` and
    `--port`.
    """
    return _broker_options(command, "--broker-host", "--broker-port", click.Option)


def _remember(name: str, help: str, to: str = "", cls: type[click.Option] = _CommonOption, **more: Any) -> "Options":
    """Return an option that is stored in the Context. A value after the subcommand overrides one before it."""

    def remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value:
            setattr(ctx.ensure_object(Context), to or str(param.name), value)

    return click.option(name, help=help, callback=remember, expose_value=False, cls=cls, **more)


def _broker_options(command: F, host: str, port: str, place: type[click.Option]) -> F:
    url = "Broker: amqp[s]://…, redis[s]://… or sqlite:///file.db. Prefer PALERMO_URL for a URL with a password."
    host_help = f"RabbitMQ's host. Use it with {port}, --user, --vhost and --password-file instead of --url."
    return all_of(
        _remember("--url", url, cls=_UrlOption, metavar="URL"),
        _remember(host, host_help, "host", place, metavar="NAME"),
        _remember(port, "RabbitMQ's port.", "port", place, type=click.IntRange(1, 65_535), metavar="N"),
        _remember("--user", "RabbitMQ's user.", metavar="NAME"),
        _remember("--vhost", "RabbitMQ's virtual host.", metavar="NAME"),
        _remember("--password-file", "File with the password in its first line.", metavar="FILE"),
        _remember("--exchange", "Exchange name, to separate systems on one broker.", metavar="NAME"),
        _remember("--debug", "Show the traceback of an error.", is_flag=True, is_eager=True),
    )(command)


def query_options(command: F) -> F:
    """Add the broker options and `--json`."""
    json = _remember("--json", "Print only JSON on stdout.", "as_json", click.Option, is_flag=True)
    return broker_options(json(command))


class Options(Protocol):
    """A decorator that adds options to a command."""

    def __call__(self, command: F, /) -> F: ...


def all_of(*options: Options) -> Options:
    """Combine these options, in the order of the help."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


#: `--page` and `--limit` of a list.
page_option = click.option("--page", type=click.IntRange(min=1), default=1, show_default=True, help="Page to show.")
limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Rows per page."
)
paging_options = all_of(click.option("--newest", is_flag=True, help="Newest first."), page_option, limit_option)
yes_option = click.option("--yes", "-y", is_flag=True, help="Don't ask for confirmation.")


def arguments_options(of: str = "") -> Options:
    """Add `--args` and `--kwargs`, which are parsed as JSON. `of` is the first part of their help."""
    first, second = (f"{of} positional", f"{of} keyword") if of else ("Positional", "Keyword")
    array = "--args", list, "an array. Write --args '[1, \"two\"]'."
    object = "--kwargs", dict, "an object. Write --kwargs '{\"width\": 640}'."
    return all_of(
        click.option("--args", metavar="JSON", callback=_json(*array), help=f"{first} arguments, as a JSON array."),
        click.option(
            "--kwargs", metavar="JSON", callback=_json(*object), help=f"{second} arguments, as a JSON object."
        ),
    )


def _json(option: str, kind: type, wanted: str) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    def read(_context: click.Context, _option: click.Parameter, text: str | None) -> Any:
        value = parsed_json(text, option)
        if text is not None and not isinstance(value, kind):
            raise misuse(f"{option} is a JSON {_KINDS.get(type(value), 'number')}; it must be {wanted}")
        return value

    return read


#: The names of JSON types other than numbers.
_KINDS = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}


def parsed_json(text: str | None, option: str) -> Any:
    """Return the JSON value of an option; None if it wasn't given. Raises click.UsageError."""
    if text is None:
        return None
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise misuse(f"{option} is nested too deeply.") from None
    except ValueError as error:
        quotes = " JSON has double quotes around text." if "'" in text or text.isalpha() else ""
        raise misuse(f"{option} is not JSON: {error}.{quotes}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


#: The completions and help placeholders for filter values that aren't free text.
_COMPLETED = {"queue": complete_queue, "job": complete_job, "worker": complete_worker}
_METAVARS = {
    **dict.fromkeys(("since", "until", "due_from", "due_until"), "WHEN"),
    **dict.fromkeys(("longer", "shorter"), "TIME"),
}


def filter_options(*names: str, of_actions: bool = False) -> Options:
    """Add `--filter`, `--text`, and an option for each of these conditions on jobs, or on operators' actions."""
    from palermo.views.filter import ACTION_CHIPS, CHIPS

    chips = ACTION_CHIPS if of_actions else CHIPS
    text = (
        "Text in the action's job ids or details." if of_actions else "Text in the job's id, name, arguments or error."
    )
    several = "Several conditions, such as 'queue:mail since:1h \"no answer\"'."
    options = [
        click.option("--filter", metavar="FILTER", help=several),
        click.option("--text", metavar="TEXT", help=text),
    ]
    for name in names:
        meaning, kind = chips[name][1], dict[str, Any](metavar=_METAVARS.get(name, "TEXT"))
        if name == "requeued":
            kind = {"is_flag": True, "flag_value": "true", "default": None}
        elif name in _COMPLETED:
            kind["shell_complete"] = _COMPLETED[name]
        options.append(click.option(f"--{name.replace('_', '-')}", help=f"{meaning[0].upper()}{meaning[1:]}.", **kind))
    return all_of(*options)


def wanted_jobs(**conditions: str | None) -> "JobFilter":
    """Return the filter given by the options. Raises OptionInvalid for a condition given twice."""
    from palermo.views.filter import filter_of

    return filter_of(conditions, clock.now())


def selection_options(filters: Options) -> Options:
    """Add job ids, `--all`, these filters, `--yes` and `--json`."""
    return all_of(
        click.argument("ids", nargs=-1, metavar="[ID]..."),
        click.option("--all", "every", is_flag=True, help="All jobs, or all that match the filters."),
        filters,
        yes_option,
        query_options,
    )
