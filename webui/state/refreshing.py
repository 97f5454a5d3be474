"""Values shared by pages: while one thread builds a new value, others use the previous one."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from palermo.webui import tuning

T = TypeVar("T")


class Refreshing(Generic[T]):
    """A value that is rebuilt once it is too old. Thread-safe.

    A value is used for `fresh` seconds, or for `slow` times its build time if that is longer. `longest` limits the
    latter, in seconds. If building fails, all callers that are waiting get the error, and the next call tries again.
    """

    def __init__(
        self,
        make: Callable[[], T],
        *,
        fresh: float = 0.0,
        slow: float = 0.0,
        longest: float = math.inf,
        stored: Callable[[T], T] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stored` is called with each new value before it is used, and may change it."""
        self._make, self._stored, self._clock = make, stored, clock
        self._fresh, self._slow, self._longest = fresh, slow, longest
        self._lock = threading.Lock()
        self._made: Future[T] | None = None
        self._made_at = -math.inf
        self._making: Future[T] | None = None
        self._began = 0.0
        #: Seconds taken to build the last value, and why the last attempt failed, or "".
        self.took, self.error = 0.0, ""

    @property
    def last(self) -> T | None:
        """The last value, regardless of its age; None before the first one and after `clear`."""
        made = self._made
        return None if made is None else made.result()

    @property
    def age(self) -> float:
        """Seconds since the last value was built."""
        return self._clock() - self._made_at

    @property
    def waiting(self) -> float:
        """How long a value has been in progress, in seconds; 0 if none is."""
        return 0.0 if self._making is None else self._clock() - self._began

    @property
    def shown_for(self) -> float:
        """How long the last value is used, in seconds."""
        return max(self._fresh, min(self._slow * self.took, self._longest))

    def begin(self, max_age: float | None = None) -> Future[T]:
        """Return the value if it isn't too old, otherwise the next one, which may already be in progress.

        `max_age` replaces `fresh`; 0 requests a new value.
        """
        with self._lock:
            most = self.shown_for if max_age is None else max_age and max(max_age, self.shown_for)
            if self._made is not None and 0 <= self.age <= most:
                return self._made
            if self._making is None:
                self._making, self._began = Future(), self._clock()
                self._making.set_running_or_notify_cancel()  # no reader can cancel it for the others
                threading.Thread(target=self._run, args=(self._making,), name="palermo-refresh", daemon=True).start()
            return self._making

    def get(self, max_age: float | None = None, *, wait: float | None = None, patience: float | None = None) -> T:
        """Return the value, as in `begin`. Waits `wait` seconds for a new one, or `patience` if the last one isn't
        stale.

        After that it returns the last value. Raises TimeoutError if there is no last value, and errors from building a
        new one.
        """
        asked = self.begin(max_age)
        try:
            return asked.result(patience if patience is not None and 0 <= self.age < tuning.STALE else wait)
        except TimeoutError:
            if (made := self._made) is None:
                raise
            return made.result()

    def clear(self) -> None:
        """Discard the value and any value in progress, because the underlying data has changed."""
        with self._lock:
            self._made = self._making = None
            self._made_at = -math.inf

    def _run(self, making: Future[T]) -> None:
        began = self._clock()
        try:
            value = self._make()
        except BaseException as error:
            with self._lock:
                if self._making is making:
                    self._making, self.error = None, str(error) or type(error).__name__
            making.set_exception(error)
            return
        with self._lock:
            if self._making is making:
                self.took = self._clock() - began
                value = value if self._stored is None else self._stored(value)
                self._made, self._made_at, self._making, self.error = making, self._clock(), None, ""
            making.set_result(value)


class RefreshingByKey(Generic[T]):
    """A value per key. The most recently used ones are kept."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Refreshing[T]] = OrderedDict()

    def of(self, key: Hashable, make: Callable[[], T]) -> Refreshing[T]:
        with self._lock:
            found = self._kept.setdefault(key, Refreshing(make, **self._options))
            self._kept.move_to_end(key)
            while len(self._kept) > tuning.MANY:
                self._kept.popitem(last=False)
            return found

    def clear(self) -> None:
        """Discard all values."""
        with self._lock:
            self._kept.clear()


def start_thread(work: Callable[[], T], name: str) -> "Future[T]":
    """Do the work on a daemon thread, and return its future."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
