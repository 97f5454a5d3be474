"""Pauses of queues, and marks of cancelled jobs.

A mark has the user's name, and a Unix second. It applies to jobs that were enqueued in that second or before.
"""

import json
from collections.abc import Iterable, Sequence

from palermo.brokers.features.steps import Step, StepStore, Stored, text_of
from palermo.brokers.features.unique_keys import change_keys, jobs_cancelled
from palermo.contract import clock
from palermo.core.message import Message
from palermo.core.queue_selection import EVERY_QUEUE, PausedQueues

#: Maximum number of cancel marks; the oldest ones are deleted.
MAX_CANCEL_MARKS = 100_000

#: Number of jobs cancelled in one step.
_CANCEL_STEP = 500


def paused_in(names: Iterable[Stored]) -> PausedQueues:
    """The paused queues, parsed from their stored names."""
    found = {text_of(name) for name in names}
    return PausedQueues(frozenset(found - {EVERY_QUEUE}), every=EVERY_QUEUE in found)


async def cancel(store: StepStore, ids: Iterable[str], by: str, created_at: int | None) -> None:
    """Mark jobs as cancelled, free the keys that they hold while waiting, and notify the workers."""
    chosen = list(dict.fromkeys(ids))
    # A mark is deleted with its job, so one with a future time doesn't affect a later job with the same id.
    mark = f"{max(int(clock.now()), created_at or 0)} {by}"
    for first in range(0, len(chosen), _CANCEL_STEP):
        await _cancel(store, chosen[first : first + _CANCEL_STEP], mark, by)


async def _cancel(store: StepStore, ids: list[str], mark: str, by: str) -> None:
    held = await store.keys_held_by(ids)
    text = json.dumps({"ids": ids, "by": by})
    steps: list[Step] = [("cancel", mark, MAX_CANCEL_MARKS, ids), ("publish", store.cancels, text)]
    names = (name for _, name in held)
    await change_keys(store, names, lambda states: jobs_cancelled(states, held), changes=steps)


async def cancelled(store: StepStore, messages: Sequence[Message]) -> frozenset[str]:
    """The ids of the cancelled jobs among these."""
    marks = await store.states("cancels", [one.id for one in messages])
    return frozenset(one.id for one, mark in zip(messages, marks, strict=True) if cancelled_by(mark, one) is not None)


def cancelled_by(mark: Stored | None, message: Message) -> str | None:
    """The user who cancelled this job; None if the mark is missing or older than the job."""
    at, _, by = text_of(mark or "").partition(" ")
    if not at.isdecimal():  # missing, or written by another program
        return None
    return by if message.created_at is None or int(message.created_at) <= int(at) else None
