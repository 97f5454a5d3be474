"""Recurring jobs as they are declared: by the options of a job, in the configuration, or at run time.

Whichever it is, what comes of it is an entry (palermo.entries): the job as it will be published at every tick,
with its arguments serialized, so that whoever fires it needs none of the user's code.
"""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from palermo.claiming import lock_for
from palermo.core.keys import locked
from palermo.core.message import NO_HEADERS, Message
from palermo.core.permits import asking, check_key
from palermo.core.preview import preview
from palermo.entries import CODE, CONFIG, Entry
from palermo.errors import OptionInvalid
from palermo.jobs import registry, split
from palermo.options import CRON
from palermo.recurring import Recurring, every_seconds
from palermo.registry import JobDefinition, check_job_name

if TYPE_CHECKING:
    from palermo.client import Client


def declared(definition: JobDefinition, options: Mapping[str, Any]) -> Recurring | None:
    """What the options of `@palermo.job` say of when it recurs; None if nothing.

    Raises OptionInvalid, and ArgumentsInvalid for arguments that the job does not take.
    """
    given = {name: value for name, value in options.items() if name in CRON and value is not None}
    if not given:
        return None
    if "cron" not in given and "every" not in given:
        raise OptionInvalid(f"job {definition.name!r}: {next(iter(given))}= says nothing without cron= or every=.")
    args, kwargs = split(given.get("schedule_args", ()))
    definition.bind(args, kwargs)
    every = given.get("every")
    return Recurring(
        name=given.get("schedule_name", definition.name),
        job=definition.name,
        cron=given.get("cron", ""),
        every=None if every is None else every_seconds(every),
        tz=given.get("tz", "UTC"),
        missed=given.get("missed", "once"),
        args=tuple(args),
        kwargs=dict(kwargs),
    )


def entry(client: "Client", recurring: Recurring, *, origin: str) -> Entry:
    """The recurring job as it is put on the broker; the options of its job hold where its code is imported here.

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
        lambda name: getattr(definition, name, None),
        client.serializers,
        definition or recurring.job,
        recurring.args,
        recurring.kwargs,
    )
    own = settings.default_queue if definition is None else settings.queue_of(definition)
    queue = recurring.queue or own
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
        message = locked(message, lock)
    return Entry(
        recurring=replace(recurring, queue=queue, args=(), kwargs={}),
        message=message,
        origin=origin,
        since=time.time(),
        expires=definition.expires if definition else None,
    )


def _limited(definition: JobDefinition, recurring: Recurring) -> Mapping[str, Any]:
    key = definition.limit_key
    if callable(key):
        key = check_key(key(*recurring.args, **recurring.kwargs))
    return asking(definition.name, definition.limit, key or "", definition.rate) or NO_HEADERS


def declarations(client: "Client") -> list[Entry]:
    """An entry for every recurring job of the code that is imported here, and of the configuration.

    Raises OptionInvalid where two have one name.
    """
    found: dict[str, Entry] = {}
    origins: list[tuple[Recurring, str]] = []
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


def configured(schedule: Mapping[str, Mapping[str, Any]]) -> list[Recurring]:
    """The recurring jobs of the setting `schedule`. Raises OptionInvalid."""
    return [_configured(name, table) for name, table in schedule.items()]


def loaded(modules: Iterable[str]) -> list[str]:
    """The modules that are imported here and belong to the packages of these."""
    tops = {module.partition(".")[0] for module in modules}
    return sorted(name for name in sys.modules if name.partition(".")[0] in tops)


def is_stale(found: Entry, *, names: Iterable[str], modules: Sequence[str], configures: bool) -> bool:
    """Whether an entry was declared by what is loaded here, and is not any more.

    `names` are those that are declared, `configures` whether the configuration here has a schedule.
    """
    if found.name in names:
        return False
    if found.origin == CONFIG:
        return configures
    return found.origin.startswith(CODE) and found.origin.removeprefix(CODE) in modules


def _configured(name: str, table: Mapping[str, Any]) -> Recurring:
    every = table.get("every")
    return Recurring(
        name=name,
        job=table["job"],
        cron=table.get("cron", ""),
        every=None if every is None else every_seconds(every),
        tz=table.get("tz", "UTC"),
        missed=table.get("missed", "once"),
        args=tuple(table.get("args", ())),
        kwargs=dict(table.get("kwargs", {})),
        queue=table.get("queue"),
    )
