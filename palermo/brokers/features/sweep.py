"""Sweep and purge a queue, in steps of bounded size.

A sweep visits the places of a queue's jobs in turn. In Redis, one place has the jobs without a tenant, ordered by
priority and age, and each tenant's jobs have a separate place. In SQLite a queue is a single place.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
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
from palermo.contract.sweep import Move, SweepDecision, SweepProgress
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
                messages = await as_they_run(store, messages)
            jobs = [(seen, number, one) for (seen, number, _), one in zip(part.jobs, messages, strict=True)]
            _, changes, seen = decided(jobs, part.seen, decide)
            removed, moved = await _apply(store, workflows, queue, place, changes)
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


#: A message that leaves the queue: its number, itself, and its move, or None to remove it.
_Change = tuple[Any, Message, Move | None]


async def _apply(
    store: StepStore, workflows: Workflows, queue: str, place: str, changes: Sequence[_Change]
) -> tuple[int, int]:
    """Change the messages that still wait. Returns how many were removed and how many were moved."""
    plain: list[_Change] = []
    freed: list[tuple[Message, Step, Step]] = []
    moved = 0
    for number, message, move in changes:
        is_step, there = step_of(message.extra) is not None, ("waits", queue, place, number)
        if is_step and move is not None and is_failed(queue) and not is_failed(move.message.queue):
            put = partial(_moved, queue, place, number)
            again = await workflows.requeue(move.message, [there], put)
            moved += again
            if not again and move.refused is not None:
                move.refused()
        elif move is not None and lock_of(move.message) is not None and not is_failed(move.message.queue):
            moved += await _readmit(store, there, _removal(queue, place, number, move), move)
        elif move is None and (is_step or lock_of(message) is not None) and not is_failed(queue):
            freed.append((message, there, _removal(queue, place, number, None)))
        else:
            plain.append((number, message, move))
    removed = len(await remove_jobs(store, workflows, freed))
    steps = [_removal(queue, place, number, move) for number, _, move in plain]
    answers = await store.change((), steps) if steps else []
    done = [move for (_, _, move), was_there in zip(plain, answers, strict=True) if was_there]
    return removed + done.count(None), moved + len(done) - done.count(None)


def _removal(queue: str, place: str, number: Any, move: Move | None) -> Step:
    return ("remove", queue, place, number, False if move is None else Job(move.message))


def _moved(queue: str, place: str, number: Any, message: Message) -> Step:
    return ("remove", queue, place, number, Job(message))


async def _readmit(store: StepStore, waits: Step, removal: Step, move: Move) -> int:
    """Requeue a job with a key. Returns 1, or 0 if it is not moved because another job holds its key."""
    while True:
        states = await read_states(store, keys_of([move.message]))
        if not readmit(states, move.message):
            if move.refused is not None:
                move.refused()
            return 0
        outcome = await store.try_change([waits, *states.conditions], [removal, *states.changes])
        if outcome.failed <= 1:
            return int(not outcome.failed)
