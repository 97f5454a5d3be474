"""Statistics of any stretch of time: read once, from the journal to one report."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from palermo.broker import Broker
from palermo.core.journal import Batch, Kind
from palermo.errors import BrokerUnavailable
from palermo.history.deploys import Deploys
from palermo.history.repeats import Repeats
from palermo.history.statistics import DIMENSIONS, Named, Report, rank
from palermo.history.tally import Tally
from palermo.journal import Reader, Start

#: Queues, jobs and workers that are kept apart, of each; what comes after so many is put together.
MOST_NAMES = 10_000

#: Batches between two reports of how far reading has come.
_STEP = 500

#: Is told how much of the way is gone, 0 to 1.
OnPart = Callable[[float], None]


class Summary:
    """What happened since an instant, as far as it was read."""

    def __init__(self, since: float) -> None:
        """`since` in Unix seconds."""
        self._since = since
        self._repeats = Repeats()
        self._known: float | None = None
        self._total = Tally()
        self._parts: dict[str, dict[str | None, Tally]] = {by: {} for by in DIMENSIONS}
        self._deploys = Deploys()
        self._lost = 0

    def take(self, batch: Batch) -> None:
        """Add what a batch says of the time that matters."""
        if self._repeats.has(batch):
            return
        for record in batch.records:
            at = record["at"]
            if not isinstance(at, int | float) or at < self._since:
                continue
            self._known = at if self._known is None else min(self._known, at)
            match record["kind"]:
                case Kind.COUNTS:
                    self._count(batch.writer, record)
                case Kind.WORKER_UP:
                    release = record.get("release")
                    if isinstance(release, str):
                        self._deploys.up(at, release)
                case Kind.LOST:
                    count = record.get("count")
                    self._lost += count if isinstance(count, int) else 0

    def report(self, now: float) -> Report:
        """All of it, up to `now` in Unix seconds."""
        return Report(
            since=self._since,
            until=now,
            known=now if self._known is None else self._known,
            total=self._total,
            cells=[],
            deploys=self._deploys.since(self._since),
            parts={
                by: sorted((Named(name, tally) for name, tally in parts.items()), key=rank)
                for by, parts in self._parts.items()
            },
            lost=self._lost,
        )

    def _count(self, writer: str, record: Mapping[str, Any]) -> None:
        tally = Tally()
        tally.read(record)
        if not tally.numbers:
            return
        self._total.merge(tally)
        for by, name in (("queue", record.get("queue")), ("job", record.get("job")), ("worker", writer)):
            if not isinstance(name, str) or not name or (by == "worker" and not tally.has_runs):
                continue
            parts = self._parts[by]
            kept = name if name in parts or len(parts) < MOST_NAMES else None
            parts.setdefault(kept, Tally()).merge(tally)


async def summarize(broker: Broker, since: float, on_part: OnPart | None = None) -> Report:
    """What the journal says of the time since an instant, Unix seconds. Raises BrokerUnavailable, BrokerRefused."""
    summary = Summary(since)
    count = last = 0

    def take(batch: Batch) -> None:
        nonlocal count, last
        summary.take(batch)
        count, last = count + 1, batch.position
        if on_part is not None and reader is not None and count % _STEP == 0:
            on_part(min(1.0, (last - reader.begin + 1) / max(1, reader.end - reader.begin + 1)))

    reader: Reader | None = None  # the first batches come before it is known
    reader = await broker.journal.read(take, Start(since=since))
    waits = [asyncio.ensure_future(event.wait()) for event in (reader.caught_up, reader.ended)]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await reader.close()
    if not reader.caught_up.is_set():
        raise BrokerUnavailable("the session was lost, or the journal deleted, while it was being read. Ask again.")
    return summary.report(time.time())
