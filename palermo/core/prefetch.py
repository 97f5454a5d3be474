"""The prefetch of a slot: the job that it runs, and a few that wait behind it while jobs are short.

No idle worker can have a job that waits behind another. So such a job waits for 20 ms at most: a slot holds no more
than it would end in that time, judged by its recent jobs. When a job runs longer, all that wait go back to their queue;
after that, a slot holds more than one only after some short jobs in a row.
"""

from msgspec import Struct

from palermo.errors import SettingInvalid

AUTO = "auto"

#: Seconds that a job may wait behind another in the same slot.
MAX_WAIT_BEHIND = 0.02

#: The most jobs that a slot holds where nobody said how many; with more, the rate does not rise.
_MOST = 16

#: The largest prefetch that may be asked for: more jobs would only be given back.
_LIMIT = 1_000

#: Short jobs in a row until a slot holds more than one again.
_IN_A_ROW = 8

#: The weight of the latest job in the mean.
_WEIGHT = 0.2


class Prefetch(Struct, frozen=True):
    """A worker's setting of prefetch."""

    #: The most jobs that a slot holds, from 1.
    most: int = 1
    #: Whether a slot begins with that many, and not with one.
    at_once: bool = True

    @classmethod
    def parse(cls, text: str) -> "Prefetch":
        """A number from 1 to 1,000, or "auto": begin with one, and go up to 16. Raises SettingInvalid."""
        if text == AUTO:
            return cls(_MOST, at_once=False)
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= _LIMIT):
            raise SettingInvalid(f'prefetch is {text[:40]!r}; it is a number from 1 to {_LIMIT:,}, or "{AUTO}".')
        return cls(int(text))

    def __str__(self) -> str:
        return str(self.most) if self.at_once else AUTO


#: A slot holds the job that it runs, and no other.
NO_PREFETCH = Prefetch()


class AdaptivePrefetch:
    """Decides how many jobs one slot may hold, by how long its jobs take."""

    __slots__ = ("_in_a_row", "_mean", "_most", "allowed")

    def __init__(self, prefetch: Prefetch) -> None:
        self._most = prefetch.most
        self._mean = 0.0
        self._in_a_row = _IN_A_ROW if prefetch.at_once else 0
        #: How many jobs the slot may hold, the one that runs among them.
        self.allowed = prefetch.most if prefetch.at_once else 1

    def ended(self, seconds: float) -> None:
        """Note that a job took this many seconds."""
        if seconds > MAX_WAIT_BEHIND:
            self.slow()
            return
        self._mean += _WEIGHT * (seconds - self._mean) if self._mean else seconds
        self._in_a_row += 1
        if self._in_a_row < _IN_A_ROW:
            return
        fit = min(self._most, 1 + int(MAX_WAIT_BEHIND / max(self._mean, 1e-6)))
        # Not at each small change: a change costs a request to the broker, and some of the jobs that are held.
        if fit >= 2 * self.allowed or fit <= self.allowed // 2 or (fit == self._most and fit > self.allowed):
            self.allowed = fit

    def slow(self) -> None:
        """The job that runs takes long: hold no other until short ones come again."""
        self.allowed, self._in_a_row, self._mean = 1, 0, MAX_WAIT_BEHIND
