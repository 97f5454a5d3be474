"""Sweep and purge a queue, in steps of bounded size.

A sweep visits the places of a queue's jobs in turn. In Redis, one place has the jobs without a tenant, ordered by
priority and age, and each tenant's jobs have a separate place. In SQLite a queue is a single place.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from palermo.brokers.features.decided import decided
from palermo.brokers.features.steps import Job, Step, StepStore
from palermo.brokers.features.unique_keys import (
    as_they_run,
    change_keyed,
    jobs_removed,
    keys_of,
    read_states,
    readmit,
)
from palermo.brokers.features.workflows import Workflows
from palermo.contract import clock
from palermo.contract.sweep import Move, Remove, SweepDecision, SweepProgress
from palermo.core.message import Message
from palermo.core.topology import is_failed
from palermo.core.unique_keys import lock_of
from palermo.core.workflow import step_of
from palermo.core.workflow_rules import How
from palermo.errors import NotFound

#: Number of places that one step of a purge visits.
_PLACES_AT_ONCE = 500


async def sweep(
    store: StepStore,
    workflows: Workflows,
    queue: str,
    decide: Callable[[Message], SweepDecision],
    progress: Callable[[SweepProgress], None] | None,
    *,
    ids: Collection[str],
) -> SweepProgress:
    """Broker.sweep. The removals and moves of a step are atomic.

    A job with a unique key is handled in a separate step. With `ids`, `decide` is called only for messages with these
    ids.
    """
    extent = await store.extent(queue)
    swept = SweepProgress(total=extent.total)
    for place in extent.places:
        after: Any = None
        while not (part := await store.part(queue, place, after, extent.last, ids)).ends:
            after = part.after
            messages = [message for _, _, message in part.jobs]
            if not is_failed(queue):
                found, now = await as_they_run(store, messages), clock.now()
                # A job in its queue is due, even one that got its permit before the time at which it was to ask again.
                messages = [replace(one, run_at=None) if (one.run_at or now) > now else one for one in found]
            jobs = [(seen, number, one) for (seen, number, _), one in zip(part.jobs, messages, strict=True)]
            _, changes, seen = decided(jobs, part.seen, decide)
            removed = moved = 0
            async for decision in _apply(store, workflows, queue, place, changes):
                decision.done()
                removed += isinstance(decision, Remove)
                moved += isinstance(decision, Move)
            swept = replace(swept, seen=swept.seen + seen, removed=swept.removed + removed, moved=swept.moved + moved)
            if progress is not None:
                progress(swept)
            if seen < part.seen:
                return swept
            await asyncio.sleep(0)
    if ids:
        swept = replace(swept, seen=swept.total)
        if progress is not None:
            progress(swept)
    return swept


async def purge(store: StepStore, workflows: Workflows, queue: str) -> int:
    """Remove all messages that are in the queue at the start; return their number. Raises NotFound."""
    extent = await store.extent(queue)
    removed = 0
    for first in range(0, len(extent.places), _PLACES_AT_ONCE):
        some = extent.places[first : first + _PLACES_AT_ONCE]
        removed += await _purge(store, workflows, queue, some, extent.last, drop_next=True)
    return removed


async def clear_tenant(store: StepStore, workflows: Workflows, queue: str, tenant: str) -> int:
    """Remove a tenant's waiting jobs from a queue; return their number."""
    try:
        last = (await store.extent(queue)).last
    except NotFound:
        return 0
    return await _purge(store, workflows, queue, (tenant,), last, drop_next=False)


async def _purge(
    store: StepStore, workflows: Workflows, queue: str, places: Sequence[str], last: int, *, drop_next: bool
) -> int:
    removed, more = 0, True
    while more:
        some, more, keyed = await store.purge_some(queue, places, last, leave_keyed=not is_failed(queue))
        freed = [
            (message, ("waits", queue, place, number), ("remove", queue, place, number, False))
            for place, number, message in keyed
        ]
        removed += some + len(await remove_jobs(store, workflows, freed, drop_next=drop_next))
        await asyncio.sleep(0)
    return removed


async def remove_jobs(
    store: StepStore,
    workflows: Workflows,
    jobs: Sequence[tuple[Message, Step, Step]],
    *,
    how: How = How.CANCELLED,
    drop_next: bool = False,
) -> list[Message]:
    """Remove jobs that have keys or are steps, which end in this way; return the jobs that still existed.

    Each job comes with the condition that it exists, and the change that removes it. See `change_keyed`.
    """
    gone = await workflows.remove([one for one in jobs if step_of(one[0].extra)], how=how)
    keyed = [one for one in jobs if not step_of(one[0].extra)]
    return gone + await change_keyed(store, keyed, partial(jobs_removed, drop_next=drop_next))


#: A message that leaves the queue: its number, itself, and the decision about it.
_Change = tuple[Any, Message, Remove | Move]


async def _apply(
    store: StepStore, workflows: Workflows, queue: str, place: str, changes: Sequence[_Change]
) -> AsyncIterator[Remove | Move]:
    """Change the messages that still wait. Yields each decision once it has been carried out."""
    plain: list[tuple[Remove | Move, Step]] = []
    freed: list[tuple[Message, Step, Step]] = []
    for number, message, decision in changes:
        move = decision if isinstance(decision, Move) else None
        is_step, there = step_of(message.extra) is not None, ("waits", queue, place, number)
        removal = _removal(queue, place, number, None if move is None else move.message)
        if is_step and move is not None and is_failed(queue) and not is_failed(move.message.queue):
            made = await workflows.requeue(move.message, [there], partial(_removal, queue, place, number))
        elif move is not None and lock_of(move.message) is not None and not is_failed(move.message.queue):
            made = await _readmit(store, there, removal, move.message)
        elif move is None and (is_step or lock_of(message) is not None) and not is_failed(queue):
            freed.append((message, there, removal))
            continue
        else:
            plain.append((decision, removal))
            continue
        if made:
            yield decision
        elif move is not None and not (await store.try_change([there], ())).failed:
            # The message still waits, so its key or its workflow forbids the move.
            move.refused()
    decisions = {id(message): decision for _, message, decision in changes}
    for message in await remove_jobs(store, workflows, freed):
        yield decisions[id(message)]
    answers = await store.change((), [removal for _, removal in plain]) if plain else []
    for (decision, _), was_there in zip(plain, answers, strict=True):
        if was_there:
            yield decision


def _removal(queue: str, place: str, number: Any, successor: Message | None) -> Step:
    return ("remove", queue, place, number, False if successor is None else Job(successor))


async def _readmit(store: StepStore, waits: Step, removal: Step, message: Message) -> bool:
    """Requeue a job with a key. Returns False if it no longer waits, or if another job holds its key."""
    while True:
        states = await read_states(store, keys_of([message]))
        if not readmit(states, message):
            return False
        outcome = await store.try_change([waits, *states.conditions], [removal, *states.changes])
        if outcome.failed <= 1:
            return not outcome.failed
