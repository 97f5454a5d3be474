"""Events: the publisher puts an event into the queue of each group that wants it, in one step.

Events that are kept are also entries of a log. A group that wants those from before subscribes in a step that also
notes the newest of them: later ones come by themselves, and it is given the others. So each event comes to it once.
"""

import json
import re
import uuid
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from palermo.brokers.features.steps import Step, puts
from palermo.brokers.redis.jobs import from_blob, to_blob
from palermo.brokers.redis.log import Entry, Log, id_of, place_of
from palermo.brokers.redis.store import Store
from palermo.contract import clock
from palermo.contract.broker import SessionParameters
from palermo.contract.events import ALL_EVENTS, ReplayFilter, Subscription, no_group, no_subscriber, not_kept
from palermo.contract.sweep import SweepProgress
from palermo.core.topics import Event

#: Old events that are given to a group in one step.
_BATCH_SIZE = 500

#: Two ids of a stream: the last event from before that a group was given, and the last that it is to get.
_TOLD = re.compile(rb"\d+-\d+ \d+-\d+")

#: The field of a log of which groups there are: it changes with each of them.
VERSION = "\0version"


class RedisEvents:
    """The events of one exchange. See palermo.contract.events.Events."""

    def __init__(self, store: Store, session: SessionParameters) -> None:
        self._store = store
        self._keep = session.keep_events
        self._age = session.events_age
        self._log = Log(store, "events", age=session.events_age, most_bytes=session.events_bytes)

    async def publish(self, event: Event) -> None:
        async def attempt() -> None:
            now = clock.now()
            version, subscriptions = await self._groups()
            wanting = [one for one in subscriptions if one.wants(event.topic)]
            if not wanting and not self._keep:
                raise no_subscriber(event)
            steps = puts(one.job(event) for one in wanting)
            if self._keep:
                at = event.message.queued_at or now
                steps += self._log.appended(to_blob(event.message), now, event.topic, at)
            await self._store.change([("field", "groups", VERSION, version)], steps)

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
                steps.append(("tell", self._log.name, group))
            await self._store.change([("field", "groups", VERSION, version)], steps)

        await self._store.retried(attempt)
        told = 0
        while (more := await self._store.retried(lambda: self._tell_old(subscription))) is not None:
            told += more
        return told

    async def unsubscribe(self, group: str) -> None:
        if not await self._store.call("HEXISTS", self._store.key("groups"), group):  # also one that cannot be read
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
        subscription = await self._find(group)
        run = uuid.uuid4().hex[:8]
        last = await self._log.last()
        total = await self._log.size()
        next, seen, replayed = 0, 0, 0
        while entries := await self._log.read(next, last, _BATCH_SIZE):
            next = entries[-1].place + 1
            seen += len(entries)
            jobs = [subscription.job(event, run=run, old=True) for event in self._matching(entries, subscription, old)]
            await self._store.change((), puts(jobs))
            replayed += len(jobs)
            if progress is not None:
                progress(SweepProgress(total=total, seen=seen, moved=replayed))
        if progress is not None and not seen:
            progress(SweepProgress(total=0))
        return replayed

    async def kept(self) -> int | None:
        return await self._log.size() if self._keep else None

    async def _tell_old(self, subscription: Subscription) -> int | None:
        """Give a group some of the kept events from before that it is to get; returns how many, None if that is over.

        Another worker of the group, or a later one, goes on where this one is interrupted.
        """
        group = subscription.group
        state = await self._store.call("HGET", self._store.key("groups-told"), group)
        if state is None:
            return None
        if not _TOLD.fullmatch(state):  # another program wrote it: the group gets what comes from now on
            await self._store.change((), [("unset", "groups-told", group)])
            return None
        told, _, newest = state.partition(b" ")
        entries = await self._log.read(place_of(told) + 1, place_of(newest), _BATCH_SIZE)
        jobs = [subscription.job(event, old=True) for event in self._matching(entries, subscription, ALL_EVENTS)]
        after: Step = ("unset", "groups-told", group)
        if entries:
            after = ("set", "groups-told", group, f"{id_of(entries[-1].place)} {newest.decode()}")
        await self._store.change([("field", "groups-told", group, state)], [after, *puts(jobs)])
        return len(jobs)

    async def _groups(self) -> tuple[bytes | bool, list[Subscription]]:
        """The version of the subscriptions, and all of them by group."""
        states = await self._store.fields("groups")
        version = states.pop(VERSION.encode(), False)
        found = (Subscription.from_stored(group, states[group]) for group in sorted(states))
        return version, [one for one in found if one is not None]

    async def _find(self, group: str) -> Subscription:
        for one in await self.subscriptions():
            if one.group == group:
                return one
        raise no_group(group)

    def _matching(self, entries: Iterable[Entry], subscription: Subscription, old: ReplayFilter) -> list[Event]:
        oldest = clock.now() - self._age
        return [
            Event(one.topic, from_blob(one.blob, None))
            for one in entries
            if one.at >= oldest and old.matches(subscription, one.topic, one.at)
        ]


def _changed() -> list[Step]:
    return [("set", "groups", VERSION, uuid.uuid4().hex)]


def _removed(group: str) -> list[Step]:
    return [("unset", "groups", group), ("unset", "groups-told", group), *_changed()]
