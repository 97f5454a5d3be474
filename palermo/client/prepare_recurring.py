"""Prepares recurring jobs: makes an entry of each declaration, in the code, in the settings, or at run time.

An entry (palermo.contract.recurring_entries) holds the job as it is published at every tick, with its arguments
serialized. So the leader, which publishes it, needs none of the user's code.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from palermo.client.prepare import lock_for
from palermo.contract import clock
from palermo.contract.recurring import RecurringJob, configured
from palermo.contract.recurring_entries import CODE, CONFIG, RecurringEntry
from palermo.contract.unique_jobs import UniqueJob
from palermo.core.arguments import preview
from palermo.core.limits import check_key, limit_headers
from palermo.core.message import NO_HEADERS, Message
from palermo.core.topology import check_new_queue
from palermo.core.unique_keys import with_lock
from palermo.errors import OptionInvalid
from palermo.jobs import registry
from palermo.jobs.definition import JobDefinition, check_job_name

if TYPE_CHECKING:
    from palermo.client.client import Client


def entry(
    client: "Client", recurring: RecurringJob, *, origin: str, announced: UniqueJob | None = None
) -> RecurringEntry:
    """The entry of a recurring job, as it is put on the broker. The job's options hold if its code is imported here.

    If it is not, `announced` is what workers have announced of the job.

    Raises OptionInvalid, ArgumentsInvalid, SerializationError, QueueNameInvalid.
    """
    settings, definition = client.settings, registry.find(recurring.job)
    check_job_name(recurring.job)
    options: dict[str, Any] = {}
    if definition is not None:
        definition.bind(recurring.args, recurring.kwargs)
        options = {name: getattr(definition, name) for name in ("serializer", "compression", "sign")}
    chosen = {name: value for name, value in options.items() if value is not None}
    encoded = client.serializers.encode(
        recurring.args,
        recurring.kwargs,
        job=recurring.job,
        id=f"{recurring.name}@",
        serializer=chosen.get("serializer", settings.serializer),
        compression=chosen.get("compression", settings.compression),
        sign=chosen.get("sign", settings.sign),
        one=definition is not None and definition.one,
    )
    lock = lock_for(
        lambda name: announced.options.get(name) if announced else getattr(definition, name, None),
        client.serializers,
        definition or announced or recurring.job,
        recurring.args,
        recurring.kwargs,
    )
    own = settings.default_queue if definition is None else definition.queue_in(settings)
    queue = own if recurring.queue is None else check_new_queue(recurring.queue)
    message = Message(
        id=recurring.name,
        queue=queue,
        job=recurring.job,
        body=encoded.body,
        content_type=encoded.content_type,
        content_encoding=encoded.content_encoding,
        arguments=encoded.arguments,
        preview=preview(recurring.args, recurring.kwargs),
        timeout=definition.timeout if definition else None,
        lock_for=definition.lock_for if definition else None,
        properties={"priority": definition.priority} if definition and definition.priority else NO_HEADERS,
        keep_result=definition.keep_result if definition else None,
        extra=_limited(definition, recurring) if definition else NO_HEADERS,
    )
    if lock is not None and lock.asks:
        message = with_lock(message, lock)
    return RecurringEntry(
        recurring=replace(recurring, queue=queue, args=(), kwargs={}),
        message=message,
        origin=origin,
        since=clock.now(),
        expires=definition.expires if definition else None,
    )


def _limited(definition: JobDefinition, recurring: RecurringJob) -> Mapping[str, Any]:
    key = definition.limit_key
    if callable(key):
        key = check_key(key(*recurring.args, **recurring.kwargs))
    return limit_headers(definition.name, definition.limit, key or "", definition.rate) or NO_HEADERS


def declarations(client: "Client") -> list[RecurringEntry]:
    """An entry for every recurring job of the code that is imported here, and of the configuration.

    Raises OptionInvalid if two have one name.
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
                f"two recurring jobs are called {recurring.name!r}: one of {found[recurring.name].origin} and one of"
                f" {origin}. Give one another name, in code by schedule_name=."
            )
        found[recurring.name] = made
    return list(found.values())


def loaded(modules: Iterable[str]) -> list[str]:
    """The imported modules that belong to the packages of these modules."""
    tops = {module.partition(".")[0] for module in modules}
    return sorted(name for name in sys.modules if name.partition(".")[0] in tops)
