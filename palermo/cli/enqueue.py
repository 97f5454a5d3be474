"""`palermo enqueue`: one job by its name, from a shell."""

import json
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from palermo.cli.command_group import Context
from palermo.cli.completion import complete_job, complete_queue
from palermo.cli.options import broker_options, parse_duration, parse_instant
from palermo.cli.output import note
from palermo.core.text import nearest
from palermo.core.topology import MAX_PRIORITY, check_job_queue
from palermo.jobs import registry
from palermo.jobs.options import EnqueueOptions
from palermo.jobs.user_modules import import_modules


@click.command()
@click.argument("job", shell_complete=complete_job)
@click.option("--args", "args_text", metavar="JSON", help="Positional arguments, as a JSON array.")
@click.option("--kwargs", "kwargs_text", metavar="JSON", help="Named arguments, as a JSON object.")
@click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Where its code is: name and arguments are checked, and its own options hold. As PALERMO_IMPORTS, but strict.",
)
@click.option(
    "-q",
    "--queue",
    metavar="QUEUE",
    shell_complete=complete_queue,
    help="Its queue; else its own where --import shows its code.",
)
@click.option("--id", "id", metavar="ID", help="Its id, instead of one made for it.")
@click.option("--client", "tenant", metavar="NAME", help="Whose job it is, where clients share its queue.")
@click.option("--keep-result", is_flag=True, default=None, help="Keep what it returns, for `palermo wait`.")
@click.option("--priority", type=click.IntRange(0, MAX_PRIORITY), help="What goes first in its queue: 9.")
@click.option("--in", "after", type=parse_duration, metavar="TIME", help="To be run so long from now: 90s, 5m or 2d.")
@click.option("--at", type=parse_instant, metavar="WHEN", help="To be run at this instant: 2026-12-01T09:00Z.")
@broker_options
@click.pass_obj
def enqueue(
    context: Context,
    /,
    job: str,
    args_text: str | None,
    kwargs_text: str | None,
    modules: tuple[str, ...],
    queue: str | None,
    id: str | None,
    tenant: str | None,
    keep_result: bool | None,
    priority: int | None,
    after: float | None,
    at: float | None,
) -> None:
    """Enqueue JOB, named as on the wire (shop.tasks.resize), and print its id."""
    args, kwargs = parse_args(args_text) or [], parse_kwargs(kwargs_text) or {}
    if queue is not None:
        check_job_queue(queue)
    if after is not None and at is not None:
        raise click.UsageError("give --in or --at, not both", click.get_current_context())
    client = context.client()
    import_modules((*client.settings.imports, *modules))
    if modules and known(job) is None:
        raise click.UsageError(_unknown(job, modules), click.get_current_context())
    options = EnqueueOptions(
        queue=queue, id=id, tenant=tenant, delay=after, run_at=at, keep_result=keep_result, priority=priority
    )
    done = client.enqueue(known(job) or job, args, kwargs, **options)
    if done.duplicate:
        note(f"job {done.id} has the key of this one and is {done.duplicate}; its id is printed instead.")
    elif not done.enqueued:
        raise click.ClickException(f"a before_enqueue hook kept {job} from being enqueued")
    if queue is None and known(job) is None:
        guess = nearest(job, registry.names())
        note(f"no -q, and the code of {job} is not imported here: it went to queue {done.queue!r}.{guess}")
    click.echo(done.id)


def parse_args(text: str | None) -> list[Any] | None:
    """The JSON array behind --args. Raises click.BadParameter."""
    value = _parsed(text, "--args")
    if text is not None and not isinstance(value, list):
        _refuse("--args", f"is a JSON {_kind(value)}, not an array. Write --args '[1, \"two\"]'.")
    return value  # type: ignore[no-any-return]


def parse_kwargs(text: str | None) -> dict[str, Any] | None:
    """The JSON object behind --kwargs. Raises click.BadParameter."""
    value = _parsed(text, "--kwargs")
    if text is not None and not isinstance(value, dict):
        _refuse("--kwargs", f"is a JSON {_kind(value)}, not an object. Write --kwargs '{{\"width\": 640}}'.")
    return value  # type: ignore[no-any-return]


def known(job: str) -> Any:
    """The job's definition if its code is imported here, else None."""
    return registry.find(job)


def _unknown(job: str, modules: Sequence[str]) -> str:
    names = registry.names()
    declared = nearest(job, names) or (f" They declare {', '.join(names)}." if names else " They declare no job.")
    return f"no job {job!r} in {', '.join(modules)}.{declared}"


def _parsed(text: str | None, option: str) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        _refuse(option, "is nested too deep.")
    except ValueError as error:
        _refuse(option, f"is not JSON: {error}.")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


def _refuse(option: str, text: str) -> NoReturn:
    raise click.UsageError(f"{option} {text}", click.get_current_context())


def _kind(value: Any) -> str:
    kinds = {dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")
