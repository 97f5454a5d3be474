"""`inspector.recurring`: list, add, remove, enable, disable and run recurring jobs."""

from typing import Any, Unpack, cast

from palermo.client.prepare_recurring import entry
from palermo.contract import clock
from palermo.contract.recurring import SCHEDULED, Schedule, interval, recurring_job
from palermo.contract.recurring_entries import RUNTIME, EntryChange, RecurringEntry
from palermo.contract.row_types import RecurringRow
from palermo.contract.rows import arguments_of, as_json, iso_instant
from palermo.contract.serialization import Serializers
from palermo.inspector.changes import check_options
from palermo.inspector.context import Context
from palermo.jobs import registry


def _difference(before: RecurringEntry | None, after: RecurringEntry) -> str:
    """Return the values of a new entry, or the old and new values that differ. Arguments are only reported as
    different.
    """
    new = _values(after)
    if before is None:
        return ", ".join(f"{name} {value}" for name, value in new.items())
    old = _values(before)
    changed = [
        f"{name} {old.get(name, 'none')} → {new.get(name, 'none')}"
        for name in old | new
        if old.get(name) != new.get(name)
    ]
    changed += ["other arguments"] if before.message.body != after.message.body else []
    return ", ".join(changed) or "unchanged"


def _values(entry: RecurringEntry) -> dict[str, Any]:
    known = {
        **entry.recurring.to_plain(),
        "every": entry.recurring.every and interval(entry.recurring.every),
        "queue": entry.message.queue,
    }
    return {name: known[name] for name in SCHEDULED if known[name]}


def _row(found: RecurringEntry, serializers: Serializers, max_bytes: int) -> RecurringRow:
    recurring, message = found.recurring, found.message
    args, kwargs = arguments_of(message, serializers, max_bytes=max_bytes) or (None, None)
    row = {
        **recurring.to_plain(),
        "queue": message.queue,
        "cron": recurring.cron or None,
        "words": recurring.in_words(),
        "last_run": iso_instant(found.last_run),
        "next_run": iso_instant(found.next),
        "origin": found.origin,
        "args": args,
        "kwargs": kwargs,
    }
    return cast(RecurringRow, {name: as_json(value) for name, value in row.items()})


class RecurringJobs(Context):
    """The recurring jobs."""

    def put(self, name: str, job: Any, **times: Unpack[Schedule]) -> None:
        """Run a job repeatedly, by a cron expression or at the interval `every` (seconds or a timedelta).

        `job` is a decorated class or function, or a name. A recurring job with the same `name` is replaced. The new one
        is disabled if the old one was. If the job's code is imported here, its options apply and its arguments are
        checked. A worker whose code declares this name replaces the entry when it starts. Raises OptionInvalid,
        ArgumentsInvalid, SerializationError, QueueNameInvalid.
        """
        check_options(times, Schedule)
        definition = getattr(job, "definition", None)
        wanted = recurring_job(name, times, job=job if definition is None else definition.name)
        announced = self._client.unique_job(wanted.job) if registry.find(wanted.job) is None else None
        made = entry(self._client, wanted, origin=RUNTIME, announced=announced)
        found = self._ask(lambda broker: broker.recurring(), again=True)
        before = next((one for one in found if one.name == name), None)
        self._ask(lambda broker: broker.change_recurring(EntryChange.put(made)))
        self._record("put recurring", what=f"{name}: {_difference(before, made)}")

    def remove(self, name: str) -> None:
        """Remove a recurring job. A worker whose code or configuration declares it will add it again.

        Raises NotFound.
        """
        self._ask(lambda broker: broker.change_recurring(EntryChange.remove(name)))
        self._record("remove recurring", what=name)

    def switch(self, name: str, on: bool = True) -> None:
        """Enable or disable a recurring job, independently of workers that declare it. Raises NotFound.

        Runs missed while it is disabled are skipped.
        """
        self._ask(lambda broker: broker.change_recurring(EntryChange.switch(name, on=on)))
        self._record("enable recurring" if on else "disable recurring", what=name)

    def run(self, name: str) -> str:
        """Enqueue a recurring job now, even if it is disabled, and return the job's id.

        Its schedule doesn't change. Raises NotFound.
        """
        change = EntryChange.run(name, clock.now())
        self._ask(lambda broker: broker.change_recurring(change))
        self._record("run recurring", ids=[change.id], what=name)
        return change.id

    def list(self) -> list[RecurringRow]:
        """List all recurring jobs, by name. Arguments are None if decoding them would run untrusted code."""
        found = self._ask(lambda broker: broker.recurring(), again=True)
        return [_row(one, self._client.serializers, self._max_shown_bytes) for one in found]
