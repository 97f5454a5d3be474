"""Sweeps and purges a queue, in steps of bounded size.

A sweep goes through the places of a queue one after the other: first the jobs of nobody, by priority and age, then the
jobs of each tenant.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from palermo.brokers.features.steps import Job, Step, text_of
from palermo.brokers.features.unique_keys import (
    KeyStates,
    as_they_run,
    change_keys,
    jobs_removed,
    keys_of,
    read_states,
    readmit,
)
from palermo.brokers.redis.jobs import from_blob, id_in
from palermo.brokers.redis.store import Store
from palermo.contract.sweep import Keep, Move, Remove, Stop, SweepDecision, SweepProgress
from palermo.core.message import Message
from palermo.core.topology import is_failed
from palermo.core.unique_keys import lock_of
from palermo.errors import NotFound

#: How many messages, and how many bytes of them, are in memory at once.
_STEP = 200
_STEP_BYTES = 8 * 1024 * 1024

#: How many jobs one step of a purge removes, and how many tenants it looks at.
_PURGE_STEP = 2_000
_TENANTS_AT_ONCE = 500


class Extent(Struct, frozen=True):
    """What waits in a queue at one moment."""

    #: The newest number there is; later jobs have higher ones.
    last: int
    total: int
    #: The tenants that have jobs.
    tenants: tuple[str, ...]


async def extent_of(store: Store, queue: str) -> Extent:
    """What waits in the queue now. Raises NotFound."""
    exists, last, total, tenants = await store.run("look", "extent", queue)
    if not exists:
        raise NotFound(f"there is no queue {queue!r} at {store.server}. `palermo queues` lists those there are.")
    return Extent(store.count(last, "number"), total, tuple(text_of(tenant) for tenant in tenants))


async def sweep(
    store: Store,
    queue: str,
    decide: Callable[[Message], SweepDecision],
    progress: Callable[[SweepProgress], None] | None,
    *,
    ids: Collection[str],
) -> SweepProgress:
    """Broker.sweep: of each step's removals and moves all are done after an interruption, or none.

    With `ids` it asks only about messages with these ids.
    """
    extent = await extent_of(store, queue)
    swept = SweepProgress(total=extent.total)
    for tenant in ("", *extent.tenants):
        after: bytes | str = "-inf"
        while True:
            found, after, jobs = await store.run("look", "step", queue, tenant, after, extent.last, _STEP, _STEP_BYTES)
            if not found:
                break
            changes, seen, going = _decided(await _read(store, queue, jobs, ids), len(jobs), decide)
            removed, moved = await _apply(store, queue, tenant, changes)
            swept = replace(swept, seen=swept.seen + seen, removed=swept.removed + removed, moved=swept.moved + moved)
            if progress is not None and jobs:
                progress(swept)
            if not going:
                return swept
            await asyncio.sleep(0)
    return swept


async def purge(store: Store, queue: str) -> int:
    """Remove all messages that wait in the queue at the start; returns how many. Raises NotFound."""
    extent = await extent_of(store, queue)
    tenants, removed = ("", *extent.tenants), 0
    for first in range(0, len(tenants), _TENANTS_AT_ONCE):
        some = tenants[first : first + _TENANTS_AT_ONCE]
        removed += await _purge_places(store, queue, some, extent.last, drop_next=True)
    return removed


async def clear_tenant(store: Store, queue: str, tenant: str) -> int:
    """Remove the jobs of a tenant that wait in a queue; returns how many."""
    last = store.count(await store.call("GET", store.key("number")), "number")
    return await _purge_places(store, queue, (tenant,), last, drop_next=False)


async def _purge_places(store: Store, queue: str, tenants: Sequence[str], last: int, *, drop_next: bool) -> int:
    keyed_apart = "" if is_failed(queue) else "1"
    removed = 0
    while True:
        some, more, keyed = await store.run("purge", queue, last, _PURGE_STEP, keyed_apart, *tenants)
        removed += int(some)
        for tenant, number, blob in keyed:
            message = from_blob(blob, queue)
            removed += await _remove_keyed(store, queue, text_of(tenant), number, message, drop_next=drop_next)
        if more == b"0":
            return removed
        await asyncio.sleep(0)


async def _remove_keyed(
    store: Store, queue: str, tenant: str, number: bytes, message: Message, *, drop_next: bool = False
) -> int:
    """Remove a job that waits together with its key; returns 1, or 0 if it does not wait any more."""

    def decide(states: KeyStates) -> None:
        jobs_removed(states, [message], drop_next=drop_next)

    conditions, changes = [("waits", queue, tenant, number)], [("remove", queue, tenant, number, False)]
    return int(not await change_keys(store, keys_of([message]), decide, conditions=conditions, changes=changes))


#: One message that leaves the queue: its number, itself, and the move to make, or None to remove it.
_Change = tuple[bytes, Message, Move | None]


#: One message that is looked at: its place in its step, its number, and itself.
_Seen = tuple[int, bytes, Message]


async def _read(store: Store, queue: str, jobs: Sequence[tuple[bytes, bytes]], ids: Collection[str]) -> Sequence[_Seen]:
    """The messages of a step that are asked about, as they will run."""
    chosen = [
        (place, number, from_blob(blob, queue))
        for place, (number, blob) in enumerate(jobs)
        if not ids or id_in(blob) in ids
    ]
    if is_failed(queue):
        return chosen
    messages = await as_they_run(store, [message for _, _, message in chosen])
    return [(place, number, message) for (place, number, _), message in zip(chosen, messages, strict=True)]


def _decided(
    messages: Sequence[_Seen], count: int, decide: Callable[[Message], SweepDecision]
) -> tuple[list[_Change], int, bool]:
    """What is decided about these: the changes, how many of the step's `count` were seen, and whether it goes on."""
    changes: list[_Change] = []
    for seen, number, message in messages:
        match decide(message):
            case Stop():
                return changes, seen, False
            case Remove():
                changes.append((number, message, None))
            case Move() as move:
                changes.append((number, message, move))
            case Keep():
                pass
    return changes, count, True


async def _apply(store: Store, queue: str, tenant: str, changes: Sequence[_Change]) -> tuple[int, int]:
    """Change those messages that still wait; returns how many were removed, and how many moved."""
    plain: list[tuple[_Change, Step]] = []
    removed = moved = 0
    for change in changes:
        number, message, move = change
        if _needs_key(queue, message, move):
            done = await _apply_keyed(store, queue, tenant, change)
            removed += done and move is None
            moved += done and move is not None
            continue
        job = False if move is None else Job(move.message)
        plain.append((change, ("remove", queue, tenant, number, job)))
    answers = await store.change((), [step for _, step in plain]) if plain else []
    for ((_, _, move), _), done in zip(plain, answers, strict=True):
        removed += done and move is None
        moved += done and move is not None
    return removed, moved


def _needs_key(queue: str, message: Message, move: Move | None) -> bool:
    """Whether a change concerns a unique key: of a job that is removed, or of one that is put back into its queue."""
    if move is None:
        return lock_of(message) is not None and not is_failed(queue)
    return lock_of(move.message) is not None and not is_failed(move.message.queue)


async def _apply_keyed(store: Store, queue: str, tenant: str, change: _Change) -> int:
    """Make a change that concerns a unique key; returns 1 if it was made.

    A failed job whose key another job holds stays where it is.
    """
    number, message, move = change
    if move is None:
        return await _remove_keyed(store, queue, tenant, number, message)
    put = move.message
    lock = lock_of(put)
    assert lock is not None
    while True:
        states = await read_states(store, [lock.key])
        if not readmit(states, put):
            if move.refused is not None:
                move.refused()
            return 0
        conditions: list[Step] = [("waits", queue, tenant, number), *states.conditions]
        moved: Step = ("remove", queue, tenant, number, Job(put))
        outcome = await store.try_change(conditions, [moved, *states.changes])
        if outcome.failed <= 1:
            return int(not outcome.failed)
