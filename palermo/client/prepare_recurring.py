"""Prepares recurring jobs: builds an entry for each one declared in code, in the settings or at run time.

An entry (palermo.contract.recurring_entries) contains the job to publish at each tick, with its arguments serialized.
The leader, which publishes it, therefore doesn't need the user's code.
"""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from palermo.client.job_message import build_message, call_of
from palermo.client.prepare import lock_for
from palermo.contract import clock
from palermo.contract.recurring import RecurringJob, configured
from palermo.contract.recurring_entries import CODE, CONFIG, RecurringEntry
from palermo.contract.unique_jobs import UniqueJob
from palermo.core.topology import check_new_queue
from palermo.core.unique_keys import with_lock
from palermo.core.unique_rules import DEBOUNCE, THROTTLE
from palermo.errors import OptionInvalid
from palermo.jobs import registry

if TYPE_CHECKING:
    from palermo.client.client import Client


#: The burst options, which don't apply to ticks.
_BURSTS = frozenset((DEBOUNCE, THROTTLE))


def entry(
    client: "Client", recurring: RecurringJob, *, origin: str, announced: UniqueJob | None = None
) -> RecurringEntry:
    """Return the entry of a recurring job for the broker.

    It has the job's options if its code is imported here; otherwise those `announced` by workers. Raises OptionInvalid,
    ArgumentsInvalid, SerializationError, QueueNameInvalid.
    """
    call = call_of(client.settings, recurring.job, recurring.args, recurring.kwargs, lambda _: announced)
    queue = call.queue if recurring.queue is None else check_new_queue(recurring.queue)
    message = build_message(client, call, call.declared, id=f"{recurring.name}@", queue=queue, now=None)
    if not call.declared.keys() & _BURSTS:
        lock = lock_for(call, call.declared, client.serializers)
        if lock is not None and lock.asks:
            message = with_lock(message, lock)
    return RecurringEntry(
        recurring=replace(recurring, queue=queue, args=(), kwargs={}),
        message=replace(message, id=recurring.name),
        origin=origin,
        since=clock.now(),
        expires=call.declared.get("expires"),
    )


def declarations(client: "Client") -> list[RecurringEntry]:
    """Return an entry for each recurring job declared in the imported code or the settings.

    Raises OptionInvalid if two recurring jobs have the same name.
    """
    found: dict[str, RecurringEntry] = {}
    origins: list[tuple[RecurringJob, str]] = []
    for name in registry.names():
        definition = registry.get(name)
        if definition.recurring is not None:
            origins.append((definition.recurring, f"{CODE}{definition.target.__module__}"))
    origins += [(recurring, CONFIG) for recurring in configured(client.settings.schedule)]
    for recurring, origin in origins:
        made = entry(client, recurring, origin=origin)
        if recurring.name in found:
            raise OptionInvalid(
                f"two recurring jobs are named {recurring.name!r}: one in {found[recurring.name].origin}, one in"
                f" {origin}. Rename one of them, in code with schedule_name=."
            )
        found[recurring.name] = made
    return list(found.values())


def loaded(modules: Iterable[str]) -> list[str]:
    """Return the imported modules that are in the same packages as these modules."""
    tops = {module.partition(".")[0] for module in modules}
    return sorted(name for name in sys.modules if name.partition(".")[0] in tops)
