"""Statistics of any stretch of time: read once, from the journal to one report."""

import time
from collections.abc import Mapping
from typing import Any

from palermo.client import Client
from palermo.core.journal import Batch, Kind
from palermo.history.deploys import Deploys
from palermo.history.reading import OnProgress, read_to_end
from palermo.history.statistics import DIMENSIONS, Named, Report, rank
from palermo.history.tally import Tally
from palermo.journal import Start

#: Queues, jobs and workers that are kept apart, of each; what comes after so many is put together.
MOST_NAMES = 10_000


class Summary:
    """What happened since an instant, as far as it was read."""

    def __init__(self, since: float) -> None:
        """`since` in Unix seconds."""
        self._since = since
        self.reset()

    def reset(self) -> None:
        """Forget all."""
        self._known: float | None = None
        self._total = Tally()
        self._parts: dict[str, dict[str | None, Tally]] = {by: {} for by in DIMENSIONS}
        self._deploys = Deploys()
        self._lost = 0

    def take(self, batch: Batch) -> None:
        """Add what a batch says of the time that matters."""
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


def summarize(client: Client, since: float, progress: OnProgress | None = None) -> Report:
    """What the journal says of the time since an instant, Unix seconds. Raises BrokerUnavailable, BrokerRefused."""
    summary = Summary(since)
    read_to_end(client, [summary], Start(since=since), progress=progress)
    return summary.report(time.time())
