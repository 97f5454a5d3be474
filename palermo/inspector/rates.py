"""Rates of jobs, from the differences between two looks at queues and workers, without a second store.

A look is rows as the inspector gives them. Workers count what they have processed, and queues what they hold, so the
difference tells what came and went in between. A bounded number of such samples gives rates.
"""

import time
from collections import Counter, deque
from collections.abc import Mapping

from msgspec import Struct, field

from palermo.contract.rows import Row

#: Seconds over which rates are taken, unless another time is asked for.
RATED = 30.0

#: No rate is given if fewer seconds than this were seen.
SHORTEST = 0.9

#: The most samples that are kept, however often they are taken.
_MOST = 1_200


class Sample(Struct, frozen=True, kw_only=True):
    """What was counted between the sample before and this one."""

    #: Unix seconds, and how many seconds it covers.
    at: float
    span: float
    #: Jobs that ended, and how many of them failed.
    processed: int
    failed: int
    #: Jobs that came into each queue and left it, as far as counts tell.
    came: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)


class Snapshot(Struct, frozen=True, kw_only=True):
    """All queues and workers at one instant."""

    #: Unix seconds.
    at: float
    queues: list[Row]
    workers: list[Row]
    #: Whether all queues are paused.
    all_paused: bool = False
    #: A number that stays the same as long as nothing changes.
    version: int = 0


class Rates(Struct, frozen=True):
    """Jobs a second that came in and went out; None if too little was seen to tell."""

    come: float | None
    leave: float | None


class Samples:
    """The samples of the last minutes."""

    def __init__(self, kept: float) -> None:
        """`kept` is for how many seconds samples are kept."""
        self._kept = kept
        self._samples: deque[Sample] = deque(maxlen=_MOST)
        self.last: Snapshot | None = None

    def add(self, fresh: Snapshot) -> None:
        """Add another look."""
        if self.last is not None and fresh.at > self.last.at:
            self._samples.append(difference(self.last, fresh))
        self.last = fresh

    def since(self, at: float) -> list[Sample]:
        """The samples that ended at this instant (Unix seconds) or later and are still kept; oldest first."""
        return [sample for sample in self._samples if sample.at >= at]

    def recent(self, now: float) -> list[Sample]:
        """All samples that are kept."""
        return self.since(now - self._kept)

    def rates(self, queue: str, now: float, over: float = RATED) -> Rates:
        """The rates at which jobs came into a queue and left it."""
        seen = self.since(now - over)
        span = sum(sample.span for sample in seen)
        if span < SHORTEST:
            return Rates(None, None)
        return Rates(sum(each.came[queue] for each in seen) / span, sum(each.left[queue] for each in seen) / span)

    def throughput(self, now: float, over: float = RATED) -> tuple[float | None, float | None]:
        """Jobs processed and jobs failed a second; None if too little was seen to tell."""
        seen = self.since(now - over)
        span = sum(sample.span for sample in seen)
        if span < SHORTEST:
            return None, None
        return sum(each.processed for each in seen) / span, sum(each.failed for each in seen) / span


def difference(before: Snapshot, after: Snapshot) -> Sample:
    """The sample between two snapshots: what must have happened.

    Workers count what they processed over all their queues. So what left a queue is known
    for jobs that were seen running and are gone, and estimated for jobs that came and went
    between two looks: see `_shared`. What came in is what went out plus the increase.
    """
    # What is told of a worker that does not answer may be old, or be nothing.
    known = {row["id"]: row for row in before.workers if row.get("answers", True)}
    processed = failed = 0
    left: Counter[str] = Counter()
    held = {row["name"]: row["pending"] + row["in_progress"] for row in before.queues}
    more = {row["name"]: row["pending"] + row["in_progress"] - held.get(row["name"], 0) for row in after.queues}
    for worker in after.workers:
        if not worker.get("answers", True):
            continue
        earlier = known.get(worker["id"])
        if earlier is None or earlier["started_at"] != worker["started_at"]:
            # What a worker did before it was first seen is not of this moment, unless the worker is that young.
            earlier = {**worker, "processed": 0, "failed": 0, "jobs": []} if _is_young(worker, before) else worker
        done = max(0, worker["processed"] - earlier["processed"])
        processed += done
        failed += max(0, worker["failed"] - earlier["failed"])
        if done:
            left.update(_shared(done, earlier, worker, more))
    came: Counter[str] = Counter()
    for name, increase in more.items():
        if increase or name in left:  # Of thousands of queues most are still.
            # The queue shrank by more than the workers account for: someone cleared or requeued the rest.
            left[name] = max(left[name], -increase)
            came[name] = increase + left[name]
    return Sample(at=after.at, span=after.at - before.at, processed=processed, failed=failed, came=+came, left=+left)


def _is_young(worker: Row, before: Snapshot) -> bool:
    started = worker["started_at"]
    return started is not None and started > time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(before.at))


def _shared(done: int, before: Row, after: Row, more: Mapping[str, int]) -> Counter[str]:
    """Share `done` jobs of one worker among queues: first those that ended for certain, the rest by what changed."""
    was, now = ({job["id"]: job["queue"] for job in row["jobs"]} for row in (before, after))
    ended = Counter(queue for id, queue in was.items() if id not in now)
    rest = done - ended.total()
    if rest <= 0:
        return ended
    changed = ended + Counter(queue for id, queue in now.items() if id not in was)
    if not changed:
        served = [name for name in after["queues"] if name in more]
        # Nothing was seen to move: take the one queue it serves, or of several the one that shrank most.
        changed = Counter(sorted(served, key=lambda name: more[name])[:1])
    total = changed.total()
    if not total:
        return ended
    shares = Counter({name: rest * count // total for name, count in changed.items()})
    shares[changed.most_common(1)[0][0]] += rest - shares.total()
    return ended + shares
