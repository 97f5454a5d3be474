"""The threads in which the slots of a shared child run plain functions. A free thread takes the next job.

To hand each job to a thread of its own would cost several thread switches, which is more than a short job takes. So a
thread that has ended a job takes the next one that waits. Jobs must not wait behind a long job either: if more jobs
wait when a thread begins one, it first wakes another thread, which takes the next job as soon as it gets the
interpreter's lock.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger("palermo.worker")


class JobThreads:
    """A pool of at most `most` threads, which are started as they are needed."""

    def __init__(self, most: int) -> None:
        """The caller never gives more than `most` calls that are not done."""
        self._most = most
        self._count = 0
        self._work: deque[Callable[[], None]] = deque()
        #: How many calls were given, and how many are done. Several threads write the second without a lock: an
        #: increment that is lost only makes one thread too many.
        self._given = self._done = 0
        #: Wakes an idle thread; and whether one was woken that has not looked for work yet.
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._waking = False

    def put(self, work: Callable[[], None]) -> None:
        """Have a thread call `work`. Called by one thread."""
        self._work.append(work)
        self._given += 1
        if self._count < min(self._most, self._given - self._done):
            self._count += 1
            threading.Thread(target=self._run, name=f"palermo jobs {self._count}", daemon=True).start()
        self._wake_one()

    def _wake_one(self) -> None:
        if not self._waking:
            self._waking = True
            self._wakeups.put(None)

    def _run(self) -> None:
        work = self._work
        try:
            while True:
                self._wakeups.get()
                self._waking = False
                while work:
                    try:
                        do = work.popleft()
                    except IndexError:  # another thread was faster
                        break
                    if work:
                        self._wake_one()
                    do()
                    self._done += 1
        except BaseException:
            log.exception("a thread for jobs ended by an error of its own thread=%s", threading.current_thread().name)
            # As a slot of a process pool does; the parent finds out whose job it was.
            os._exit(70)
