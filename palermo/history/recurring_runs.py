"""The last runs of each recurring job: a view of the journal with bounded memory, filled by a JournalFollower."""

import re
import threading
from collections import deque

from msgspec import Struct

from palermo.core.failure import printable
from palermo.core.journal_records import RecordBatch
from palermo.history.entry import FINAL, MAX_ID, STATE_OF, number

#: Number of runs kept per recurring job, and maximum number of recurring jobs.
LAST_RUNS, MOST_NAMES = 20, 2_000

#: The id of a run: the recurring job's name, its due time, and a suffix if it was run manually.
RUN_ID = re.compile(r"(?P<name>.*)@(?P<due>\d{4}-\d\d-\d\dT[\d:.]+Z)(?P<by_hand>-[0-9a-f]{8})?", re.DOTALL)


class PastRun(Struct, frozen=True):
    #: A final state of the history.
    state: str
    #: In seconds.
    took: float


class RecurringRuns:
    """The last runs of each recurring job. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, deque[PastRun]] = {}

    def take(self, batch: RecordBatch) -> None:
        """Add a batch's ended runs of recurring jobs."""
        for record in batch.records:
            kind, id = record["kind"], record.get("id")
            if not isinstance(kind, str) or not isinstance(id, str) or "@" not in id or len(id) > MAX_ID:
                continue
            state = STATE_OF.get(kind)
            if state is None or state not in FINAL:
                continue
            found = RUN_ID.fullmatch(id)
            if found is None:
                continue
            name = printable(found["name"])
            with self._lock:
                # Move the job that ran last to the end, so that the oldest is dropped above the limit.
                runs = self._runs.pop(name, None) or deque(maxlen=LAST_RUNS)
                runs.append(PastRun(state, number(record.get("took")) or 0.0))
                self._runs[name] = runs
                if len(self._runs) > MOST_NAMES:
                    del self._runs[next(iter(self._runs))]

    def reset(self) -> None:
        with self._lock:
            self._runs.clear()

    def of(self, name: str) -> list[PastRun]:
        """Return the last runs of a recurring job, oldest first."""
        with self._lock:
            return list(self._runs.get(name, ()))
