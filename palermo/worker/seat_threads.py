"""The threads in which the seats of a shared child run plain functions. Whichever is free takes the next.

To hand each job to a thread of its own would cost several changes of threads for each, which is more than a short
job takes: a thread that has ended one takes the next that waits. That must not keep others waiting behind a
long job: before a thread begins one while more wait, it sees to it that another thread is on its way, which takes
the next as soon as it gets the interpreter's lock.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

log = logging.getLogger("palermo.worker")


class SeatThreads:
    """Threads that do what they are given, at most so many things at once; they are started as they are needed."""

    def __init__(self, most: int) -> None:
        """No more than `most` things are given at a time that are not done."""
        self._most = most
        self._count = 0
        self._work: deque[Callable[[], None]] = deque()
        #: Of these the second is written by several threads: where one of them is lost, there is a thread too many.
        self._given = self._done = 0
        #: Wakes a thread that has nothing to do; and whether one was woken that has not looked yet.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._coming = False

    def put(self, work: Callable[[], None]) -> None:
        """Have this done. Called by one thread."""
        self._work.append(work)
        self._given += 1
        if self._count < min(self._most, self._given - self._done):
            self._count += 1
            threading.Thread(target=self._run, name=f"palermo jobs {self._count}", daemon=True).start()
        self._ring()

    def _ring(self) -> None:
        if not self._coming:
            self._coming = True
            self._bell.put(None)

    def _run(self) -> None:
        work = self._work
        try:
            while True:
                self._bell.get()
                self._coming = False
                while work:
                    try:
                        do = work.popleft()
                    except IndexError:  # another thread was faster
                        break
                    if work:
                        self._ring()
                    do()
                    self._done += 1
        except BaseException:
            log.exception("a thread for jobs ended by an error of its own thread=%s", threading.current_thread().name)
            # As a process's slot would; the parent finds out whose job it was.
            os._exit(70)
