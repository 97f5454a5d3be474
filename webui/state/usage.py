"""Workers' memory and CPU usage in the last ten minutes, as sampled by this web process.

Each web process keeps its own samples, limited in number, and starts without any.
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from palermo.contract.rows import Row
from palermo.inspector.inspector import Inspector
from palermo.webui import tuning

#: Seconds per part of a chart, and the number of parts.
PART = tuning.RECENT
PARTS = int(tuning.WINDOW / PART)


class Answer(Struct, frozen=True):
    """A worker's answer at one instant."""

    #: Unix seconds.
    at: float
    #: Resident bytes, and processor time in seconds since its processes started; None if unknown.
    memory: float | None
    cpu: float | None


class Part(Struct, frozen=True):
    """A worker's maximum usage in a part of the time; None if unknown."""

    memory: float | None = None
    #: Percent of one processor.
    cpu: float | None = None


class WorkerUsage:
    """Each worker's answers in the last ten minutes. Thread-safe."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._lock = threading.Lock()
        self._answers: dict[str, deque[Answer]] = {}
        self._asked_at = 0.0
        #: Increases each time all workers are asked.
        self.version = 0

    def ask(self, workers: Sequence[Row], now: float) -> None:
        """Ask these workers, and forget all others. Does nothing if that was just done. Raises BrokerError."""
        with self._lock:
            if 0 <= now - self._asked_at < 2 * tuning.FRESH:
                return
            self._asked_at = now
            alive = {row["id"] for row in workers}
            self._answers = {id: answers for id, answers in self._answers.items() if id in alive}
        ids = [row["id"] for row in workers if row["answers"]][: tuning.LIMIT]
        for row in self._inspector.workers.usage(ids):
            self.add(row["worker"], row["memory"], row["cpu"], now)
        self.version += 1

    def add(self, worker: str, memory: float | None, cpu: float | None, now: float) -> None:
        """Add a worker's answer, unless there is a very recent one."""
        with self._lock:
            if worker not in self._answers and len(self._answers) >= tuning.LIMIT:
                return
            answers = self._answers.setdefault(worker, deque(maxlen=int(tuning.WINDOW / tuning.FRESH)))
            if not answers or not 0 <= now - answers[-1].at < tuning.FRESH:
                answers.append(Answer(now, memory, cpu))

    def answers(self, worker: str, now: float) -> list[Answer]:
        """Return a worker's answers in the last ten minutes, oldest first."""
        with self._lock:
            return [each for each in self._answers.get(worker, ()) if now - tuning.WINDOW < each.at <= now]


def begin(now: float) -> float:
    """Return the start of a chart's first part."""
    return now // PART * PART + PART - tuning.WINDOW


def parts(answers: Iterable[Answer], now: float) -> list[Part]:
    """Return the usage in each part of the last ten minutes, oldest first."""
    found = [Part()] * PARTS
    known = list(answers)
    for before, each in pairwise([None, *known]):
        assert each is not None
        cpu, since = None, each.at
        if before is not None and before.at < each.at:
            since = max(before.at, each.at - tuning.STALE)
            if before.cpu is not None and each.cpu is not None:
                # May decrease when processes end: see palermo.worker.limits.processor_time.
                cpu = max(0.0, each.cpu - before.cpu) / (each.at - before.at) * 100
        first, last = (int((at - begin(now)) // PART) for at in (since, each.at))
        for nth in range(max(0, first), min(last, PARTS - 1) + 1):
            found[nth] = Part(_most(found[nth].memory, each.memory), _most(found[nth].cpu, cpu))
    return found


def newest(found: Sequence[Part]) -> Part:
    """Return the current usage, from the last known values."""
    memory = next((each.memory for each in reversed(found) if each.memory is not None), None)
    return Part(memory, next((each.cpu for each in reversed(found) if each.cpu is not None), None))


def _most(one: float | None, other: float | None) -> float | None:
    return max((each for each in (one, other) if each is not None), default=None)
