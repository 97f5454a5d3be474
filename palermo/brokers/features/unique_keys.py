"""Keys of unique jobs: a key changes in the step that stores, starts or deletes its job.

palermo/core/unique_rules.py decides. A decision is written only if the key is unchanged since it was read.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from palermo.brokers.features.steps import Step, StepStore, Stored, puts, text_of, unchanged
from palermo.brokers.features.workflow_steps import read_flow
from palermo.contract import clock
from palermo.contract.admission import KeyReport
from palermo.contract.broker import KeyPage, OrphanedKey, check_bodies
from palermo.contract.unique_jobs import UniqueJob, stored_key
from palermo.core import unique_rules
from palermo.core.message import MAX_BODY, Message
from palermo.core.unique_keys import Key, KeyRequest, key_names, lock_of
from palermo.core.unique_rules import EnqueueAnswer, KeyUpdate, RunOutcome, StartAnswer, StartReason

#: Maximum number of claims, or due keys, in one step.
_BATCH_SIZE = 200


class KeyStates:
    """The states of some keys, and the steps that result from decisions about them."""

    def __init__(self, read: Mapping[str, Stored | None]) -> None:
        self._read = read
        self._keys = {name: _key(name, state) for name, state in read.items()}
        self._changed: dict[str, None] = {}
        self._jobs: list[Message] = []

    def __getitem__(self, name: str) -> Key:
        return self._keys[name]

    def update(self, step: KeyUpdate, *, always: bool = False) -> None:
        """Record a decision about a key. It is written if it changes the key, or with `always`."""
        if always or step.key != self._keys[step.key.name]:
            self._changed[step.key.name] = None
        self._keys[step.key.name] = step.key
        self._jobs += step.jobs

    def as_they_run(self, messages: Sequence[Message], *, max_body: int = MAX_BODY) -> list[Message]:
        """These waiting messages, with the arguments that they will run with."""
        return unique_rules.as_they_run(messages, self._keys, max_body=max_body)

    @property
    def conditions(self) -> list[Step]:
        """The condition, for each changed key, that it is still in the state that was read."""
        return [unchanged("keys", name, self._read[name]) for name in self._changed]

    @property
    def changes(self) -> list[Step]:
        """The new states, and the jobs to publish with them."""
        return puts(self._jobs) + [self._change(name) for name in self._changed]

    def _change(self, name: str) -> Step:
        before, key = _key(name, self._read[name]).holder, self._keys[name]
        gone = False if before is None else before.id
        if key.is_free:
            return ("key", name, False, False, gone, False)
        due = key.alarm if key.alarm is not None else key.over
        holder = False if key.holder is None else key.holder.id
        return ("key", name, json.dumps(key.to_plain()), False if due is None else due, gone, holder)


async def read_states(store: StepStore, names: Iterable[str]) -> KeyStates:
    """Read the current states of these keys."""
    wanted = list(dict.fromkeys(names))
    states = await store.states("keys", wanted) if wanted else []
    return KeyStates(dict(zip(wanted, states, strict=True)))


async def as_they_run(store: StepStore, messages: Sequence[Message], *, max_body: int = MAX_BODY) -> list[Message]:
    """These waiting messages, with the arguments that they will run with."""
    return (await read_states(store, key_names(messages))).as_they_run(messages, max_body=max_body)


class Keys:
    """See palermo.contract.broker.UniqueKeys."""

    def __init__(self, store: StepStore) -> None:
        self._store = store

    async def enqueue(self, claims: Sequence[KeyRequest]) -> list[EnqueueAnswer]:
        check_bodies(claims)
        answers: list[EnqueueAnswer] = []
        for first in range(0, len(claims), _BATCH_SIZE):
            answers += await self._enqueue(claims[first : first + _BATCH_SIZE])
        return answers

    async def why_silent(self) -> None:
        return None

    async def known(self) -> list[Key]:
        return await self._shown("")

    async def page(self, text: str, *, offset: int, limit: int) -> KeyPage:
        found = await self._shown(text)
        return KeyPage(keys=tuple(found[offset : offset + limit]), total=len(found))

    async def find(self, name: str) -> Key | None:
        key = unique_rules.current((await read_states(self._store, [name]))[name], clock.now())
        return key if key.is_shown() else None

    async def free(self, names: Iterable[str]) -> list[str]:
        wanted = list(dict.fromkeys(names))
        freed: list[str] = []

        def decide(states: KeyStates) -> None:
            now = clock.now()
            freed.clear()
            for name in wanted:
                if not unique_rules.current(states[name], now).is_free:
                    freed.append(name)
                    states.update(unique_rules.free(states[name], now=now))

        await change_keys(self._store, wanted, decide)
        return freed

    async def orphaned(self) -> list[OrphanedKey]:
        keys = await self._shown("")
        held = [(key.name, key.holder) for key in keys if key.holder is not None and key.holder.until is None]
        absent = await self._store.absent([holder.id for _, holder in held]) if held else set()
        # Read last, because the step that deletes a workflow's job stores its workflow.
        absent -= await self._workflows(absent)
        return [
            OrphanedKey(key=name, id=holder.id, queue=holder.queue, since=holder.since)
            for name, holder in held
            if holder.id in absent
        ]

    async def _workflows(self, ids: Iterable[str]) -> set[str]:
        """The ids among these of workflows that have not ended."""
        names = list(ids)
        flows = map(read_flow, await self._store.states("flows", names) if names else ())
        return {name for name, stored in zip(names, flows, strict=True) if stored and not stored.flow.view.whole.over}

    async def announce(self, jobs: Iterable[str], unique: Iterable[UniqueJob]) -> None:
        known, wanted = await self.announced(), {one.name: one for one in unique}
        changes: list[Step] = [
            ("set", "unique-jobs", one.name, json.dumps(one.to_plain()))
            for one in wanted.values()
            if known.get(one.name) != one
        ]
        changes += [("unset", "unique-jobs", name) for name in (known.keys() & set(jobs)) - wanted.keys()]
        if changes:
            await self._store.change((), changes)

    async def announced(self) -> dict[str, UniqueJob]:
        states = await self._store.fields("unique-jobs")
        found = (UniqueJob.from_stored(name, states[name]) for name in states)
        return {one.name: one for one in found if one is not None}

    async def publish_due(self, now: float) -> None:
        """Publish the jobs whose keys are due, and delete keys that have become free."""
        names = await self._store.due("keys", now, _BATCH_SIZE)
        await change_keys(self._store, names, lambda states: publish_due(states, names, now))

    async def _enqueue(self, claims: Sequence[KeyRequest]) -> list[EnqueueAnswer]:
        answers: list[EnqueueAnswer] = []

        def decide(states: KeyStates) -> None:
            now = clock.now()
            answers.clear()
            for claim in claims:
                step, answer = unique_rules.enqueue(states[claim.key], claim, now)
                states.update(step)
                answers.append(answer)

        await change_keys(self._store, (claim.key for claim in claims), decide)
        return answers

    async def _shown(self, text: str) -> list[Key]:
        now = clock.now()
        found = {text_of(name): state async for name, state in self._store.scan("keys")}
        keys = (unique_rules.current(_key(name, found[name]), now) for name in sorted(found))
        return [key for key in keys if key.is_shown(text)]


async def change_keys(
    store: StepStore,
    names: Iterable[str],
    decide: Callable[[KeyStates], None],
    *,
    conditions: Sequence[Step] = (),
    changes: Sequence[Step] = (),
) -> int:
    """Write the decisions of `decide` about these keys, together with other changes, if the other conditions hold.

    Calls `decide` again if another session has changed a key. Returns 0, or the number, from 1, of the entry in
    `conditions` that failed.
    """
    wanted = list(dict.fromkeys(names))

    def steps(found: Sequence[Stored | None]) -> tuple[list[Step], list[Step]]:
        states = KeyStates(dict(zip(wanted, found, strict=True)))
        decide(states)
        return states.conditions, states.changes

    while True:
        outcome = await store.try_decide("keys", wanted, steps, conditions, changes)
        if outcome.failed <= len(conditions):
            return outcome.failed


async def change_keyed(
    store: StepStore,
    jobs: Iterable[tuple[Message, Step, Step]],
    decide: Callable[[KeyStates, Sequence[Message]], None],
) -> list[Message]:
    """Change jobs and their keys in one step; return the jobs that still existed.

    Each job comes with the condition that it exists, and its change. `decide` decides about the keys of these jobs.
    """
    left = list(jobs)

    def messages() -> list[Message]:
        return [message for message, _, _ in left]

    while left:
        conditions, changes = [one for _, one, _ in left], [one for _, _, one in left]
        failed = await change_keys(
            store,
            keys_of(messages()),
            lambda states: decide(states, messages()),
            conditions=conditions,
            changes=changes,
        )
        if not failed:
            return messages()
        del left[failed - 1]
    return []


def start_run(states: KeyStates, message: Message, *, worker: str, run: str, again: bool) -> StartAnswer:
    """Decide whether a worker may start a job that it has claimed."""
    lock = lock_of(message)
    if lock is None:
        return StartAnswer(why=StartReason.RUN)
    step, answer = unique_rules.start(states[lock.key], message, worker=worker, run=run, again=again, now=clock.now())
    states.update(step)
    return answer


def end_run(states: KeyStates, message: Message, run_end: KeyReport) -> None:
    """Decide about a job's key after a run."""
    lock = lock_of(message)
    if lock is not None:
        states.update(
            unique_rules.end(
                states[lock.key],
                message.id,
                run_end.how,
                serial=run_end.serial,
                starts=run_end.starts,
                now=clock.now(),
                run_at=run_end.run_at,
            )
        )


def jobs_removed(states: KeyStates, messages: Iterable[Message], *, drop_next: bool = False) -> None:
    """Decide about the keys of waiting jobs that are removed."""
    for message in messages:
        lock = lock_of(message)
        if lock is not None:
            step = unique_rules.job_removed(states[lock.key], message.id, clock.now(), drop_next=drop_next)
            states.update(step)


def jobs_moved(states: KeyStates, messages: Iterable[Message]) -> None:
    """Decide about the keys of scheduled jobs that are moved to the queues and due times in these messages."""
    for message in messages:
        lock = lock_of(message)
        if lock is not None:
            states.update(unique_rules.job_moved(states[lock.key], message, clock.now()))


def readmit(states: KeyStates, message: Message) -> bool:
    """Decide whether an operator may requeue or move the job, which then takes its key."""
    lock = lock_of(message)
    if lock is None:
        return True
    step, may = unique_rules.readmit(states[lock.key], message, clock.now())
    states.update(step)
    return may


def workflow_changed(states: KeyStates, root: Message, how: RunOutcome) -> bool:
    """Decide about the key of a workflow that has ended or continues. Returns whether it may."""
    lock = lock_of(root)
    if lock is None:
        return True
    step, may = unique_rules.workflow_changed(states[lock.key], root, how, clock.now())
    states.update(step)
    return may


def jobs_cancelled(states: KeyStates, held: Iterable[tuple[str, str]]) -> None:
    """Decide about the keys of cancelled jobs that are still waiting and won't run."""
    for id, name in held:
        states.update(unique_rules.job_removed(states[name], id, clock.now()))


def publish_due(states: KeyStates, names: Iterable[str], now: float) -> None:
    """Decide about due keys: publish their jobs, and delete keys that have become free."""
    for name in names:
        states.update(unique_rules.publish_due(states[name], now), always=True)


def keys_of(messages: Iterable[Message]) -> list[str]:
    """The keys that these jobs need."""
    return [lock.key for message in messages if (lock := lock_of(message)) is not None]


def _key(name: str, state: Stored | None) -> Key:
    """The key in this state; a free key if the state is missing or unreadable."""
    return Key(name=name) if state is None else replace(stored_key(name, state), name=name)
