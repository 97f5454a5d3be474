"""Events: one step publishes an event to the queues of all subscribed groups.

Kept events are also entries of a log. If a new group wants earlier events, the step that subscribes it also stores the
position of the newest entry. The group gets later events as they are published, and the earlier ones in batches, so it
gets each event once.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from palermo.brokers.features.log import Log
from palermo.brokers.features.steps import Entry, Step, StepStore, Stored, puts, text_of, unchanged
from palermo.contract import clock
from palermo.contract.broker import SessionParameters
from palermo.contract.events import ALL_EVENTS, ReplayFilter, Subscription, no_group, no_subscriber, not_kept
from palermo.contract.stored_records import read_record
from palermo.contract.sweep import SweepProgress
from palermo.core.message import Message
from palermo.core.plain import message_from_plain, message_to_plain
from palermo.core.topics import Event

#: Number of earlier events that a group receives in one step.
_BATCH_SIZE = 500

#: Two positions in the log for a group: of the last earlier event that it has received, and of the last one that it
#: should receive.
_PROGRESS = re.compile(r"(\d+) (\d+)")

#: An entry in the table of groups that changes with every group. No group can have this name.
VERSION = "~version"


class StepEvents:
    """The events of one exchange. See palermo.contract.events.Events."""

    def __init__(self, store: StepStore, session: SessionParameters) -> None:
        self._store = store
        self._keep = session.keep_events
        self._age = session.events_age
        self._log = Log("events", age=session.events_age, most_bytes=session.events_bytes)

    async def publish(self, event: Event) -> None:
        async def attempt() -> None:
            now = clock.now()
            version, subscriptions = await self._groups()
            wanting = [one for one in subscriptions if one.wants(event.topic)]
            if not wanting and not self._keep:
                raise no_subscriber(event)
            steps = puts(one.job(event) for one in wanting)
            if self._keep:
                body = json.dumps(message_to_plain(event.message)).encode()
                steps += self._log.append(body, now, topic=event.topic, at=event.message.queued_at)
            await self._store.change([version], steps)

        await self._store.retried(attempt)

    async def subscribe(self, subscription: Subscription, *, from_start: bool = False) -> int:
        group = subscription.group

        async def attempt() -> None:
            version, subscriptions = await self._groups()
            found = {one.group: one for one in subscriptions}.get(group)
            since = found.since if found is not None else subscription.since or clock.now()
            state = json.dumps(replace(subscription, since=since).to_plain())
            steps: list[Step] = [("set", "groups", group, state), *_changed(), ("declare", subscription.queue)]
            if found is None and from_start and self._keep:
                steps.append(("start_replay", self._log.name, group))
            await self._store.change([version], steps)

        await self._store.retried(attempt)
        count = 0
        while (more := await self._store.retried(lambda: self._send_earlier(subscription))) is not None:
            count += more
        return count

    async def unsubscribe(self, group: str) -> None:
        if (await self._store.states("groups", [group]))[0] is None:  # an unreadable one can be removed too
            raise no_group(group)
        await self._store.change((), _removed(group))

    async def unsubscribe_queue(self, queue: str) -> None:
        """Unsubscribe the group whose queue is being deleted."""
        for one in await self.subscriptions():
            if one.queue == queue:
                await self._store.change((), _removed(one.group))

    async def subscriptions(self) -> list[Subscription]:
        return (await self._groups())[1]

    async def replay(
        self, group: str, old: ReplayFilter = ALL_EVENTS, *, progress: Callable[[SweepProgress], None] | None = None
    ) -> int:
        if not self._keep:
            raise not_kept()
        subscription = next((one for one in await self.subscriptions() if one.group == group), None)
        if subscription is None:
            raise no_group(group)
        run = uuid.uuid4().hex[:8]
        last = await self._store.newest("events") or 0
        swept = SweepProgress(total=await self._store.size("events"))
        first = 0
        while entries := await self._store.entries("events", first, last, _BATCH_SIZE):
            first = entries[-1].place + 1
            jobs = [subscription.job(event, run=run, old=True) for event in self._matching(entries, subscription, old)]
            await self._store.change((), puts(jobs))
            swept = replace(swept, seen=swept.seen + len(entries), moved=swept.moved + len(jobs))
            if progress is not None:
                progress(swept)
        if progress is not None and not swept.seen:
            progress(swept)
        return swept.moved

    async def kept(self) -> int | None:
        return await self._store.size("events") if self._keep else None

    async def _send_earlier(self, subscription: Subscription) -> int | None:
        """Send a group some of its earlier events; return their number, or None once it has all.

        If the worker stops in between, another or later worker of the group continues.
        """
        group = subscription.group
        (state,) = await self._store.states("replays", [group])
        if state is None:
            return None
        places = _PROGRESS.fullmatch(text_of(state))
        entries: Sequence[Entry] = ()
        after: Step = ("unset", "replays", group)
        if places is not None:  # written by another program: the group gets new events only
            sent, newest = map(int, places.groups())
            entries = await self._store.entries("events", sent + 1, newest, _BATCH_SIZE)
            if entries:
                after = ("set", "replays", group, f"{entries[-1].place} {newest}")
        jobs = [subscription.job(event, old=True) for event in self._matching(entries, subscription, ALL_EVENTS)]
        await self._store.change([unchanged("replays", group, state)], [after, *puts(jobs)])
        return len(jobs)

    async def _groups(self) -> tuple[Step, list[Subscription]]:
        """The condition that no subscription has changed, and all subscriptions by group."""
        states = {text_of(name): state for name, state in (await self._store.fields("groups")).items()}
        version: Stored | None = states.pop(VERSION, None)
        found = (Subscription.from_stored(group, states[group]) for group in sorted(states))
        return unchanged("groups", VERSION, version), [one for one in found if one is not None]

    def _matching(self, entries: Iterable[Entry], subscription: Subscription, old: ReplayFilter) -> list[Event]:
        oldest = clock.now() - self._age
        return [
            Event(one.topic, message)
            for one in entries
            if one.at >= oldest and old.matches(subscription, one.topic, one.at)
            if (message := _stored_message(one)) is not None
        ]


def _stored_message(entry: Entry) -> Message | None:
    """The message of a kept event; None, with a warning, if it is unreadable."""
    remedy = "it is not replayed"
    return read_record(message_from_plain, entry.body, what="a kept event", name=entry.place, remedy=remedy)


def _changed() -> list[Step]:
    return [("set", "groups", VERSION, uuid.uuid4().hex)]


def _removed(group: str) -> list[Step]:
    return [("unset", "groups", group), ("unset", "replays", group), *_changed()]
