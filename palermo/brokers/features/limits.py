"""Limits and rates, applied in the step that lets a job run or postpones it.

The step that deletes or releases a job also ends its permit, and gives it to the job that has waited longest for it.
"""

import json
from collections.abc import Sequence
from typing import Any

from palermo.brokers.features.steps import Step, StepStore, Stored, text_of, unchanged
from palermo.contract import clock
from palermo.contract.limits import stored_limit
from palermo.core.limits import MAX_POSTPONEMENT, LimitDemand, LimitInfo, RateState, RunLater, RunNow

#: Approximate number of keys read in one batch, which blocks Redis for other clients.
_LOOK_AT = 200


async def decide(
    store: StepStore, number: Any, demand: LimitDemand, now: float
) -> tuple[RunNow | RunLater, Sequence[Step], Sequence[Step]]:
    """Decide whether the job with this number may run now. Returns the decision, its conditions and its changes."""
    permit = demand.key
    (state,) = await store.states("limits", [permit])
    conditions: list[Step] = [unchanged("limits", permit, state)]
    rate_state = _rate_state(state)
    if demand.limit is not None:
        has, running = await store.permits(number, permit)
        if not has:
            conditions.append(("running", permit, running))
            if running >= demand.limit:
                # Usually an ending job passes its permit on. This is for a permit that became free in another way.
                return RunLater(now + MAX_POSTPONEMENT), conditions, [_saved(demand, rate_state)]
    decision: RunNow | RunLater = RunNow()
    if demand.rate is not None:
        rate_state, decision = rate_state.request(demand.rate, now, reserved=demand.reserved)
    changes = [_saved(demand, rate_state)]
    if isinstance(decision, RunNow):
        changes.append(("permit", number, permit))
    return decision, conditions, changes


async def list_limits(store: StepStore) -> list[LimitInfo]:
    """All keys that have running or waiting jobs or reserved runs, by name."""
    cursor: Stored = ""
    now, found = clock.now(), dict[str, LimitInfo]()
    while True:
        cursor, states = await store.some("limits", cursor, _LOOK_AT)
        counts = await store.permit_counts([name for name, _ in states])
        for (name, state), (running, called, waiting) in zip(states, counts, strict=True):
            stored, key = stored_limit(name, state), text_of(name)
            waits = called + waiting + stored.turns(now)
            if running or waits:
                found[key] = LimitInfo(key=key, limit=stored.limit, rate=stored.rate, running=running, waiting=waits)
        if not cursor:
            return [found[key] for key in sorted(found)]


async def forget_idle(store: StepStore, cursor: Stored) -> Stored:
    """Delete limited keys whose state no longer matters.

    A state no longer matters if no job has or awaits a permit for the key, and its rate has expired. Reads some keys
    from the cursor on, and continues while most of them can be deleted. Returns the next cursor. The cursor is empty at
    the start and after the last key.
    """
    while True:
        now = clock.now()
        cursor, states = await store.some("limits", cursor, _LOOK_AT)
        over = [(name, state) for name, state in states if _is_over(state, now)]
        forgotten = sum(await store.change((), [("forget_limit", *one) for one in over])) if over else 0
        if not forgotten or 2 * forgotten < len(states):
            return cursor


def _is_over(state: Stored, now: float) -> bool:
    stored = stored_limit("", state)
    return stored.state.is_over(stored.rate, now)


def _saved(demand: LimitDemand, rates: RateState) -> Step:
    plain = {
        "limit": demand.limit,
        "rate": demand.written,
        "next": rates.next,
        "free": rates.free,
        "again": rates.again,
    }
    return ("set", "limits", demand.key, json.dumps(plain))


def _rate_state(state: Stored | None) -> RateState:
    return RateState() if state is None else stored_limit("", state).state
