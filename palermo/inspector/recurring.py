"""The inspector's noun for recurring jobs: list, add, remove, enable, disable and run them."""

from collections.abc import Mapping, Sequence
from typing import Any

from palermo.client.prepare_recurring import entry
from palermo.contract import clock
from palermo.contract.recurring import RecurringJob, every_seconds
from palermo.contract.recurring_entries import RUNTIME, EntryChange, RecurringEntry
from palermo.contract.rows import Row, arguments_of, as_json, iso_instant
from palermo.contract.serialization import Serializers
from palermo.core.failure import printable
from palermo.core.times import Duration
from palermo.inspector.context import Context
from palermo.jobs import registry


def _difference(before: RecurringEntry | None, after: RecurringEntry) -> str:
    """The values of a new entry, or the old and the new values that differ; of arguments only that they differ."""
    new = _values(after)
    if before is None:
        return ", ".join(f"{name} {value}" for name, value in new.items() if value)
    old = _values(before)
    changed = [f"{name} {old[name] or 'none'} → {new[name] or 'none'}" for name in new if old[name] != new[name]]
    changed += ["other arguments"] if before.message.body != after.message.body else []
    return ", ".join(changed) or "unchanged"


def _values(entry: RecurringEntry) -> dict[str, str]:
    due = entry.recurring
    every = "" if due.every is None else f"{due.every:g} s"
    cron = f"{due.cron} ({due.tz})" if due.cron else ""
    return {"cron": cron, "every": every, "missed": due.missed, "job": due.job, "queue": entry.message.queue}


def _row(found: RecurringEntry, serializers: Serializers, max_bytes: int) -> Row:
    recurring, message = found.recurring, found.message
    arguments = arguments_of(message, serializers, max_bytes=max_bytes)
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
        "last_run": iso_instant(found.last_run),
        "next_run": iso_instant(found.next),
        "origin": printable(found.origin),
        "args": as_json(args),
        "kwargs": as_json(kwargs),
    }


class RecurringJobs(Context):
    """The recurring jobs: list, add, remove, enable, disable and run them."""

    def put(
        self,
        name: str,
        job: Any,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        tz: str = "UTC",
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
        queue: str | None = None,
        missed: str = "once",
    ) -> None:
        """Run a job repeatedly: at the times of a cron expression, or at the interval `every`, seconds or a timedelta.

        `job` is a decorated class or function, or a name. A recurring job of the same `name` is replaced; if it was
        disabled it stays so. If the job's code is imported here, its options hold and its arguments are checked. A
        worker whose code declares the same name replaces this one when it starts. Raises OptionInvalid,
        ArgumentsInvalid, SerializationError, QueueNameInvalid.
        """
        definition = getattr(job, "definition", None)
        wanted = RecurringJob(
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
        announced = self._client.unique_job(wanted.job) if registry.find(wanted.job) is None else None
        made = entry(self._client, wanted, origin=RUNTIME, announced=announced)
        found = self._ask(lambda broker: broker.recurring(), again=True)
        before = next((one for one in found if one.name == name), None)
        self._ask(lambda broker: broker.change_recurring(EntryChange.put(made)))
        self._record("put recurring", what=f"{name}: {_difference(before, made)}")

    def remove(self, name: str) -> None:
        """Remove a recurring job; one that code or configuration declares comes back when a worker with it starts.

        Raises NotFound.
        """
        self._ask(lambda broker: broker.change_recurring(EntryChange.remove(name)))
        self._record("remove recurring", what=name)

    def switch(self, name: str, on: bool = True) -> None:
        """Enable or disable a recurring job, and keep it so when workers that declare it start. Raises NotFound.

        Ticks while it is disabled are not made up for.
        """
        self._ask(lambda broker: broker.change_recurring(EntryChange.switch(name, on=on)))
        self._record("enable recurring" if on else "disable recurring", what=name)

    def run(self, name: str) -> str:
        """Enqueue a recurring job now, enabled or not; its times stay as they are. The job's id. Raises NotFound."""
        change = EntryChange.run(name, clock.now())
        self._ask(lambda broker: broker.change_recurring(change))
        self._record("run recurring", ids=[change.id], what=name)
        return change.id

    def list(self) -> list[Row]:
        """All recurring jobs, by name.

        A row is `name`, `job`, `queue`, `cron` or `every` (seconds), `tz`, `words`, `missed`, `enabled`, `last_run`,
        `next_run` (None while disabled), `origin` ("code:<module>", "config" or "runtime"), `args` and `kwargs` (None
        where they cannot be decoded without running foreign code).
        """
        found = self._ask(lambda broker: broker.recurring(), again=True)
        return [_row(one, self._client.serializers, self._max_shown_bytes) for one in found]
