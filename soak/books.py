"""The checks of unique keys, of ticks, and of messages published without Palermo."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any

from soak.reasons import Reasons
from soak.records import Answer, Order, Run, Sent
from soak.traffic import LATER

#: Maximum seconds by which a tick may be late, because the leader that published it may have been killed.
LATE = 15.0


class Keys:
    """Checks that only one job per key exists at a time, and that each id reported as the holder of a key is real."""

    def __init__(
        self,
        *,
        orders: Sequence[Order],
        answers: Sequence[Answer],
        runs: Sequence[Run],
        failed: Sequence[Mapping[str, Any]],
        left: Sequence[Mapping[str, Any]],
        reasons: Reasons,
    ) -> None:
        """`left` contains the inspector's rows of keys after all jobs are done."""
        self.answers = len(answers)
        #: How often two jobs with the same key ran at once, by reason.
        self.together: Counter[str] = Counter()
        self._reasons = reasons
        self._runs: defaultdict[str, list[Run]] = defaultdict(list)
        keys = {order.number: order.key for order in orders}
        for run in runs:
            if key := keys.get(run.number):
                self._runs[key].append(run)
        real = {order.id for order in orders} | {run.id for run in runs} | {str(row["id"]) for row in failed}
        nowhere = Counter((answer.key, answer.holder) for answer in answers if answer.holder not in real)
        self.wrongs = [
            *(f"key left behind: {count} were told of {id!r}, {key!r}" for (key, id), count in nowhere.items()),
            *(f"key still taken: {row}" for row in left),
            *self._audit(),
        ]

    def _audit(self) -> Iterator[str]:
        for key, runs in self._runs.items():
            for first, second in pairwise(runs):
                if first.ended is not None and first.ended <= second.began:
                    continue
                if first.ended is None and self._reasons.dead(first, second.began):
                    continue
                reason = self._reasons.two_at_once(first, second)
                self.together[reason or "unexplained"] += 1
                if not reason:
                    yield f"two at once with {key!r}: {first} {second}"


class Ticks:
    """Checks that each tick of a job that recurs every second ran once."""

    def __init__(
        self,
        *,
        runs: Sequence[Run],
        failed: Sequence[Mapping[str, Any]],
        until: float,
        monotonic: Callable[[float], float],
        reasons: Reasons,
    ) -> None:
        """`until` is the time up to which all ticks must have run; `monotonic` is the same time by the monotonic
        clock.
        """
        self._reasons = reasons
        self._monotonic = monotonic
        self.runs: defaultdict[int, list[Run]] = defaultdict(list)
        for run in runs:
            self.runs[run.number].append(run)
        self._failed = Counter(_tick(row) for row in failed)
        self.duplicates: Counter[str] = Counter()
        self.lost = 0
        self.wrongs = list(self._audit(int(until)))

    def _audit(self, until: int) -> Iterator[str]:
        if not self.runs:
            yield "no tick ever came"
            return
        for tick in range(min(self.runs), until):
            ran = self.runs.get(tick, [])
            if not self._failed[tick] and not any(run.ended is not None for run in ran):
                if self._fell("broker killed", tick):
                    self.duplicates["not fired, the broker was killed"] += 1
                else:
                    self.lost += 1
                    yield f"tick lost: {tick} {ran}"
            for first, second in pairwise(ran):
                reason = self._why_again(tick, first, second)
                self.duplicates[reason or "unexplained"] += 1
                if not reason:
                    yield f"tick fired again for no reason: {tick} {first} {second}"

    def _why_again(self, tick: int, first: Run, second: Run) -> str:
        if reason := self._reasons.unsettled(first, second.began):
            return reason
        due = self._monotonic(tick)
        if self._reasons.leader_lost(due, min(second.began, max(due, first.began) + LATE)):
            return "fired twice, its leader was killed or lost its line"
        return ""

    def _fell(self, kind: str, tick: int) -> bool:
        due = self._monotonic(tick)
        return any(
            fault.kind == kind and due <= fault.until and fault.at <= due + LATE for fault in self._reasons.faults
        )


def _tick(row: Mapping[str, Any]) -> int:
    return int(datetime.fromisoformat(str(row["id"]).partition("@")[2]).timestamp())


class Messages:
    """Counts messages without ids by their bodies, and compares the numbers published, run and failed."""

    def __init__(self, *, sent: Sequence[Sent], runs: Sequence[Run], failed: Counter[int], reasons: Reasons) -> None:
        """`failed` counts the failed messages by their body, which is a number."""
        outcomes: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._sent = {each.number: each for each in sent}
        for each in sent:
            outcomes[each.number][each.outcome] += 1
        self._failed = failed
        self._runs: defaultdict[int, list[Run]] = defaultdict(list)
        for run in runs:
            self._runs[run.number].append(run)
        self._reasons = reasons
        self.outcomes = Counter(each.outcome for each in sent)
        self.lost = 0
        #: Number of runs and failures above the number of published messages.
        self.surplus = 0
        unknown = sorted({*self._runs, *failed} - outcomes.keys())
        self.wrongs = [
            *(f"nobody published message {number}" for number in unknown),
            *(wrong for number, counted in outcomes.items() for wrong in self._audit(number, counted)),
        ]

    def _audit(self, number: int, outcomes: Counter[str]) -> Iterator[str]:
        runs, kind = self._runs[number], self._sent[number].kind
        done = sum(run.ended is not None for run in runs) + self._failed[number]
        confirmed, uncertain = outcomes["confirmed"], outcomes[""]
        if done < confirmed:
            self.lost += confirmed - done
            yield f"lost: {confirmed - done} of {confirmed} messages with the body {number} ({kind})"
        # A job that raises has not ended, and one that ended without being settled is delivered again.
        excused = sum(run.ended is not None and bool(self._reasons.unsettled(run, float("inf"))) for run in runs)
        # A message that failed without being decoded never runs.
        if self._failed[number] > 1:
            last = self._sent[number]
            excused += self._failed[number] * self._reasons.failed_twice(last.began, last.ended)
        surplus = done - confirmed - uncertain
        self.surplus += max(0, surplus)
        # Delayed messages are moved by leaders, which a soak kills.
        if surplus > excused and number != LATER:
            yield (
                f"too often: {done} messages with the body {number} ({kind}) ran or failed, {confirmed} were confirmed,"
                f" {uncertain} perhaps stored, {excused} may have run again"
            )
