"""Limits and rates, decided in the step that lets a job run or postpones it.

The permits of a key are a set of the numbers of jobs. A permit ends in the step that deletes its job or gives it back,
and goes in the same step to the job that has waited longest for it: scripts/common.lua.
"""

import json
from collections.abc import Sequence

from palermo.brokers.features.steps import Step, text_of
from palermo.brokers.redis.store import Store
from palermo.contract import clock
from palermo.contract.limits import stored_limit
from palermo.core.limits import MAX_POSTPONEMENT, LimitDemand, LimitInfo, RateState, RunLater, RunNow

#: About so many keys are read at once where all are looked at: Redis does nothing else meanwhile.
_LOOK_AT = 200


async def decide(
    store: Store, number: str, demand: LimitDemand, now: float
) -> tuple[RunNow | RunLater, Sequence[Step], Sequence[Step]]:
    """Whether the job with this number, which is held, may run now; and the conditions and changes that come of it."""
    permit = demand.key
    state = await store.call("HGET", store.key("limits"), permit)
    has = await store.call("HGET", store.key("permits"), number)
    conditions: list[Step] = [("field", "limits", permit, state or False)]
    rate_state = _rate_state(state)
    if demand.limit is not None and has != permit.encode():
        running = await store.call("SCARD", store.key(f"permit:{permit}"))
        conditions.append(("size", f"permit:{permit}", running))
        if running >= demand.limit:
            # As a rule it gets a permit from a job that ends; this is for a permit that was freed in some other way.
            return RunLater(now + MAX_POSTPONEMENT), conditions, [_saved(demand, rate_state)]
    decision: RunNow | RunLater = RunNow()
    if demand.rate is not None:
        rate_state, decision = rate_state.request(demand.rate, now, reserved=demand.reserved)
    changes = [_saved(demand, rate_state)]
    if isinstance(decision, RunNow):
        changes.append(("permit", number, permit))
    return decision, conditions, changes


async def list_limits(store: Store) -> list[LimitInfo]:
    """All keys that have running or waiting jobs or reserved runs, by name."""
    now, found = clock.now(), dict[bytes, LimitInfo]()
    cursor = b"0"
    while True:
        cursor, fields = await store.call("HSCAN", store.key("limits"), cursor, "COUNT", _LOOK_AT)
        states = dict(zip(fields[::2], fields[1::2], strict=True))
        for name, (running, called, waiting) in zip(states, await store.run("look", "limits", *states), strict=True):
            stored = stored_limit(name, states[name])
            waits = called + waiting + stored.turns(now)
            if running or waits:
                found[name] = LimitInfo(
                    key=text_of(name), limit=stored.limit, rate=stored.rate, running=running, waiting=waits
                )
        if cursor == b"0":
            return [found[name] for name in sorted(found)]


async def forget_idle(store: Store, cursor: bytes) -> bytes:
    """Forget keys that say nothing any more: no job has or awaits a permit of theirs, and their rates are over.

    It reads some keys from the cursor on, and goes on while most of what it reads is such. Returns the next cursor;
    b"0" is the first, and the one after the last key.
    """
    while True:
        now = clock.now()
        cursor, found = await store.call("HSCAN", store.key("limits"), cursor, "COUNT", _LOOK_AT)
        states = list(zip(found[::2], found[1::2], strict=True))
        over = [(name, state) for name, state in states if _is_over(state, now)]
        forgotten = sum(await store.change((), [("forget_limit", *one) for one in over])) if over else 0
        if not forgotten or 2 * forgotten < len(states):
            return bytes(cursor)


def _is_over(state: bytes, now: float) -> bool:
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


def _rate_state(state: bytes | None) -> RateState:
    return RateState() if state is None else stored_limit("", state).state
