"""`palermo enqueue`: enqueues a job by its name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from palermo.cli.command_group import Context, misuse, note
from palermo.cli.completion import complete_job, complete_queue
from palermo.cli.options import Options, all_of, arguments_options, parse_duration, parse_instant, query_options
from palermo.cli.output import printed_json
from palermo.client.handle import Conflict
from palermo.core.text import nearest
from palermo.core.topology import check_new_queue
from palermo.core.unique_keys import Mode
from palermo.inspector.inspector import Inspector
from palermo.jobs import registry
from palermo.jobs.modules import import_modules
from palermo.jobs.option_kinds import Choice, Count, Flag, Headers, Number, Seconds, UniqueFor
from palermo.jobs.options import ENQUEUE_OPTIONS, OPTIONS


def _parse_unique(text: str) -> str | float:
    """Return `until_start` or `until_done`, or the seconds of a duration. Raises click.BadParameter."""
    if text in (Mode.START, Mode.DONE):
        return text
    try:
        return parse_duration(text)
    except click.BadParameter:
        words = f"{Mode.START}, {Mode.DONE}"
        raise click.BadParameter(f"{text!r} is neither {words} nor a duration such as 5m.") from None


def _parse_header(text: str) -> tuple[str, str]:
    """Return the name and text of a header. Raises click.BadParameter."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(f"{text!r} is not NAME=TEXT.")
    return name, value


#: Parsers by kind of option. Other options are text.
_READERS: Mapping[type, Callable[[str], Any]] = {
    UniqueFor: _parse_unique,
    Seconds: parse_duration,
    Count: int,
    Number: float,
}


def _flag(name: str) -> Options:
    option, flag = OPTIONS[name], f"--{name.replace('_', '-')}"
    match option.kind:
        case Flag():
            return click.option(flag, is_flag=True, default=None, help=option.help)
        case Headers():
            return click.option(
                flag.removesuffix("s"),
                name,
                type=_parse_header,
                multiple=True,
                callback=lambda _context, _option, given: dict(given) or None,
                metavar=option.kind.metavar,
                help=f"{option.help} May be repeated.",
            )
        case Choice(words) if not isinstance(option.kind, UniqueFor):
            return click.option(flag, type=click.Choice(words), help=option.help)
    reader = _READERS.get(type(option.kind), str)
    return click.option(flag, type=reader, metavar=option.kind.metavar, help=option.help)


#: The job options whose flags are defined separately.
_OWN_FLAGS = ("queue", "id", "delay", "run_at")

#: Flags for all other options of `.options()`, with the same names.
_job_options = all_of(*(_flag(name) for name in ENQUEUE_OPTIONS if name not in _OWN_FLAGS))


@click.command()
@click.argument("job", shell_complete=complete_job)
@arguments_options()
@click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Module with the job's code, to check the arguments and apply the declared options.",
)
@click.option(
    "-q",
    "--queue",
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="Queue to enqueue to; by default the job's own, if its code is imported.",
)
@click.option("--id", "id", metavar="ID", help="The job's id; a new UUID by default.")
@click.option(
    "--in", "--delay", "after", type=parse_duration, metavar="TIME", help="Delay before the job runs: 90s, 5m or 2d."
)
@click.option("--at", type=parse_instant, metavar="WHEN", help="Time to run the job: 2026-12-01T09:00Z.")
@_job_options
@query_options
@click.pass_obj
def enqueue(
    context: Context,
    /,
    job: str,
    args: list[Any] | None,
    kwargs: dict[str, Any] | None,
    modules: tuple[str, ...],
    queue: str | None,
    id: str | None,
    after: float | None,
    at: float | None,
    **options: Any,
) -> None:
    """Enqueue a job by name, such as shop.tasks.resize, and print its id.

    The options are those of `.options()` in Python. To apply the options that the job declares, import its code with
    --import or PALERMO_IMPORTS. Otherwise only the declared options of unique jobs apply, once a worker with the code
    has started.
    """
    if queue is not None:
        check_new_queue(queue)
    if after is not None and at is not None:
        raise misuse("--in and --at cannot be combined")
    client = context.client(creates=True)
    import_modules((*client.settings.imports, *modules))
    definition = registry.find(job)
    if modules and definition is None:
        raise misuse(_unknown(job, modules))
    done = client.enqueue(
        definition or job, args or [], kwargs or {}, queue=queue, id=id, delay=after, run_at=at, **options
    )
    conflict = done.conflict
    if conflict is None and not done.enqueued:
        raise click.ClickException(f"a before_enqueue hook rejected {job}")
    if conflict is not None:
        note(_explained(conflict, done.id))
    if conflict is None or conflict.outcome == "displaced":
        if (definition is None or queue is not None) and (unserved := Inspector(client).queues.unserved(done.queue)):
            note(f"{unserved} The job waits until a worker serves it.")
        if definition is None and queue is None:
            guess = nearest(job, registry.names())
            note(
                f"no -q, and the code of {job} is not imported here (--import MODULE): it went to queue"
                f" {done.queue!r}.{guess}"
            )
    row = {"id": done.id, "job": done.job, "queue": done.queue}
    if not printed_json({**row, "conflict": None if conflict is None else asdict(conflict)}):
        click.echo(done.id)


def _explained(conflict: Conflict, id: str) -> str:
    match conflict.outcome:
        case "returned":
            return f"job {conflict.id} has the same key and is {conflict.state}; its id is printed instead."
        case "replaced":
            return f"job {conflict.id} has the same key and is {conflict.state}; its arguments were replaced."
        case _ if conflict.id == id:
            return f"this enqueue replaced an earlier one of {id}, which had not started."
        case _:
            return f"this job replaced job {conflict.id}, which had the same key and had not started."


def _unknown(job: str, modules: Sequence[str]) -> str:
    names = registry.names()
    declared = nearest(job, names) or (f" They declare {', '.join(names)}." if names else " They declare no job.")
    return f"no job {job!r} in {', '.join(modules)}.{declared}"
