"""Recurring jobs for the inspector: seen, added, removed, enabled and disabled, run now.

These are methods of palermo.inspector.Inspector, which names them.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from palermo.core.failure import printable
from palermo.entries import RUNTIME, Entry
from palermo.recurring import Recurring, every_seconds
from palermo.rows import Row, arguments_of, instant, plain
from palermo.schedules import entry
from palermo.serialization import Serializers

if TYPE_CHECKING:
    from palermo.inspector import Inspector


def recurring(inspector: "Inspector") -> list[Row]:
    """All recurring jobs, by name.

    A row is `name`, `job`, `queue`, `cron` or `every` (seconds), `tz`, `words`, `missed`, `enabled`, `last_run`,
    `next_run` (None while disabled), `origin` ("code:<module>", "config" or "runtime"), `args` and `kwargs` (None
    where they cannot be decoded without running foreign code).
    """
    found = inspector._ask(lambda broker: broker.recurring(), again=True)
    return [_row(one, inspector._client.serializers) for one in found]


def put_recurring(
    inspector: "Inspector",
    name: str,
    job: Any,
    *,
    cron: str | None = None,
    every: float | timedelta | None = None,
    tz: str = "UTC",
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    queue: str | None = None,
    missed: str = "once",
) -> None:
    """Have a job run again and again: at the times of a cron expression, or `every` so many seconds.

    `job` is a decorated class or function, or a name. One of this name is replaced; if it was disabled it stays so.
    Where the code of the job is imported here its options hold and its arguments are checked. What a worker's code
    declares under the same name wins when that worker starts. Raises OptionInvalid, ArgumentsInvalid,
    SerializationError, QueueNameInvalid.
    """
    definition = getattr(job, "definition", None)
    wanted = Recurring(
        name=name,
        job=job if definition is None else definition.name,
        cron=cron or "",
        every=None if every is None else every_seconds(every),
        tz=tz,
        missed=missed,
        args=tuple(args),
        kwargs=dict(kwargs or {}),
        queue=queue,
    )
    made = entry(inspector._client, wanted, origin=RUNTIME)
    inspector._ask(lambda broker: broker.put_recurring(made))
    inspector._acted("put recurring", what=name)


def remove_recurring(inspector: "Inspector", name: str) -> None:
    """Take a recurring job away; one that code or configuration declares comes back when a worker with it starts.

    Raises NotFound.
    """
    inspector._ask(lambda broker: broker.remove_recurring(name))
    inspector._acted("remove recurring", what=name)


def switch_recurring(inspector: "Inspector", name: str, on: bool = True) -> None:
    """Have a recurring job fire at its times, or not: also after workers that declare it start. Raises NotFound.

    What is due while it is disabled is not made up for.
    """
    inspector._ask(lambda broker: broker.switch_recurring(name, on=on))
    inspector._acted("enable recurring" if on else "disable recurring", what=name)


def run_recurring(inspector: "Inspector", name: str) -> str:
    """Enqueue a recurring job now, be it enabled or not; its times stay as they are. The job's id. Raises NotFound."""
    id = inspector._ask(lambda broker: broker.fire_recurring(name))
    inspector._acted("run recurring", ids=[id], what=name)
    return id


def _row(found: Entry, serializers: Serializers) -> Row:
    recurring, message = found.recurring, found.message
    arguments = arguments_of(message, serializers)
    args, kwargs = arguments if arguments is not None else (None, None)
    return {
        "name": printable(found.name),
        "job": printable(recurring.job),
        "queue": printable(message.queue),
        "cron": recurring.cron or None,
        "every": recurring.every,
        "tz": recurring.tz,
        "words": recurring.in_words(),
        "missed": recurring.missed,
        "enabled": recurring.enabled,
        "last_run": instant(found.last_run),
        "next_run": instant(found.next),
        "origin": printable(found.origin),
        "args": plain(args),
        "kwargs": plain(kwargs),
    }
