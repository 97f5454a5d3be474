"""The check of jobs with ids, which compares the enqueued jobs with runs, faults and failures."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from soak.reasons import Reasons
from soak.records import PIDS, Order, Run, pid_of

#: Maximum number of jobs from the deleted queue that workers may hold, one for each slot that serves it.
TAKEN = 12


class Ledger:
    """Checks all jobs that were enqueued one by one or in batches."""

    def __init__(
        self, *, orders: Sequence[Order], runs: Sequence[Run], failed: Sequence[Mapping[str, Any]], reasons: Reasons
    ) -> None:
        """`failed` contains the inspector's rows."""
        self.orders = {order.number: order for order in orders}
        self._runs = runs
        self._failed = failed
        self._reasons = reasons
        self._by_number: defaultdict[int, list[Run]] = defaultdict(list)
        for run in runs:
            self._by_number[run.number].append(run)
        self._deleted = {fault: fault.jobs + TAKEN for fault in reasons.faults if fault.kind == "queue remade"}
        #: How often jobs ran again, by reason.
        self.duplicates: Counter[str] = Counter()
        self.errors = Counter(str(row["error"]["class"]) for row in failed)
        #: Number of jobs that were lost with a deleted queue.
        self.deleted = 0
        self.lost = 0
        self.wrongs = list(self._audit())

    @property
    def refused(self) -> int:
        return sum(order.refused for order in self.orders.values())

    @property
    def uncertain(self) -> int:
        return sum(not order.id and not order.refused for order in self.orders.values())

    def _audit(self) -> Iterator[str]:
        """Yield a description of every broken promise."""
        numbers: Counter[int] = Counter(row["args"][0] for row in self._failed)
        yield from (f"nobody enqueued {run}" for run in self._runs if run.number not in self.orders)
        for order in self.orders.values():
            ran = self._by_number[order.number]
            copies = numbers[order.number]
            if {run.id for run in ran} - {order.id} and order.id:
                yield f"ran under another id: {order} {ran}"
            if order.id and not copies and not any(run.ended is not None for run in ran) and not self._went(order):
                self.lost += 1
                yield f"lost: {order} {ran}"
            if order.raises and not copies and ran and not self._went(order):
                yield f"raised, and is not in failed: {order} {ran}"
            if order.refused and (ran or copies) and not self._reasons.published_twice(order):
                yield f"refused, but ran: {order} {ran}"
            if copies > max(1, len(ran)):
                yield f"{copies} times in failed after {len(ran)} runs: {order}"
            for first, second in pairwise(ran):
                reason = self._reasons.again(order, first, second)
                self.duplicates[reason or "unexplained"] += 1
                if not reason:
                    yield f"ran again for no reason: {order} {first} {second}"
        for row in self._failed:
            if wrong := self._wrongly_failed(row):
                yield f"{wrong}: {row['id']} {row['args'][0]} {row['error']['class']}: {row['error']['message']}"

    def _went(self, order: Order) -> bool:
        """Whether the job may have been lost with its queue. The broker reported how many were, and workers held
        some.
        """
        for fault, left in self._deleted.items():
            if order.queue in fault.queues and order.began <= fault.until:
                # Jobs on their way to the queue were not counted.
                counted = order.ended < fault.at
                if left or not counted:
                    self._deleted[fault] -= counted
                    self.deleted += 1
                    return True
        return False

    def _wrongly_failed(self, row: Mapping[str, Any]) -> str:
        order = self.orders.get(row["args"][0])
        if order is None:
            return "nobody enqueued a job that failed"
        match row["error"]["class"]:
            case "ArithmeticError":
                return "" if order.raises else "failed although it does not raise"
            case "palermo.errors.DuplicateJob":
                # Without confirmation, it may have been stored after another job got its key.
                return "" if order.key and not order.id else "not run for its key, though it was confirmed"
            case "palermo.errors.JobCrashed":
                ran = self._by_number[order.number]
                killed = self._reasons.crashed(ran, pid_of(row["worker"]))
                return "" if killed else "crashed although nobody killed its process"
            case "palermo.errors.WorkerDied":
                killed_workers = {fault.parent for fault in self._reasons.faults if fault.kind == "parent"}
                accused = {int(pid) for pid in PIDS.findall(row["error"]["message"])}
                guilty = len(accused) >= 3 and accused <= killed_workers
                return "" if guilty else "given up for workers that nobody killed"
        return "failed for a reason that the soak does not know"


def table(counts: Mapping[str, int] | Collection[tuple[str, int]]) -> str:
    """Return counts in one line, largest first."""
    ordered = Counter(dict(counts)).most_common()
    return ", ".join(f"{count:,} {name}" for name, count in ordered) or "none"
