"""Statistics of the time since any instant: the journal is read once, for one report."""

import time
from collections.abc import Mapping
from typing import Any

from palermo.client.client import Client
from palermo.contract.journal import ReadFrom
from palermo.core.journal_records import RecordBatch, RecordKind
from palermo.history.deploys import Deploys
from palermo.history.journal_reader import OnProgress, read_to_end
from palermo.history.statistics import DIMENSIONS, Named, Report, rank
from palermo.history.tally import Tally

#: The most queues, jobs and workers, of each, that are kept apart; those that come later are put together.
MOST_NAMES = 10_000


class Summary:
    """The sums of what happened since an instant, as far as the journal was read."""

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

    def take(self, batch: RecordBatch) -> None:
        """Add the records of a batch that are of that time."""
        for record in batch.records:
            at = record["at"]
            if not isinstance(at, int | float) or at < self._since:
                continue
            self._known = at if self._known is None else min(self._known, at)
            match record["kind"]:
                case RecordKind.COUNTS:
                    self._count(batch.writer, record)
                case RecordKind.WORKER_UP:
                    release = record.get("release")
                    if isinstance(release, str):
                        self._deploys.up(at, release)
                case RecordKind.LOST:
                    count = record.get("count")
                    self._lost += count if isinstance(count, int) else 0

    def report(self, now: float) -> Report:
        """The report up to `now`, in Unix seconds."""
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
    """The report of the time since an instant, in Unix seconds. Raises BrokerUnavailable, BrokerRefused."""
    summary = Summary(since)
    read_to_end(client, [summary], ReadFrom(since=since), progress=progress)
    return summary.report(time.time())
