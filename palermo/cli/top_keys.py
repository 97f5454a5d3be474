"""The keys of `palermo top`: choose a queue, pause or resume it, requeue its failed jobs, filter what is shown."""

import glob
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from palermo.contract.rows import Row
from palermo.core.text import count, one_line
from palermo.core.topology import is_failed
from palermo.errors import PalermoError
from palermo.inspector.failed_filter import FailedFilter
from palermo.inspector.inspector import Inspector

_UP, _DOWN = "\x1b[A", "\x1b[B"
_ENTER, _ESCAPE, _ERASE = "\r\n", "\x1b", "\x7f\b"

#: The last line, while nothing is asked or typed.
HELP = "q quits  ↑↓ queue  p pause/resume  r requeue  / filter"


class TopKeys(Struct):
    """What the keys have chosen so far."""

    inspector: Inspector
    #: The chosen queue; "" for none.
    queue: str = ""
    #: Only queues, jobs and errors with this in their names are shown.
    wanted: str = ""
    #: Whether keys are typed into the filter.
    typing: bool = False
    #: Whether the next key answers whether the failed jobs of the chosen queue are requeued.
    asks: bool = False
    #: What the last key did.
    outcome: str = ""

    @property
    def foot(self) -> str:
        """The last line of the screen."""
        if self.typing:
            return f"filter: {one_line(self.wanted)}_  Enter keeps it, Escape removes it"
        if self.asks:
            return f"requeue all failed jobs{self._of_queue}? y or n"
        shown = f"filter: {one_line(self.wanted)}" if self.wanted else ""
        return self.outcome or "  ".join(part for part in (HELP, shown) if part)

    def press(self, pressed: str, queues: Sequence[Row]) -> bool:
        """Obey these keys; `queues` are the rows that are shown, in their order. Returns whether to quit."""
        for key in _keys(pressed):
            if self.typing:
                self._type(key)
            elif self.asks:
                self.asks = False
                if key == "y":
                    self._act(self._requeue)
            elif key in "qQ":
                return True
            else:
                self.outcome = ""
                self._obey(key, queues)
        return False

    def _obey(self, key: str, queues: Sequence[Row]) -> None:
        names = [row["name"] for row in queues]
        at = names.index(self.queue) if self.queue in names else None
        match key:
            case "/":
                self.typing = True
            case _ if key in (_DOWN, "j") and names:
                self.queue = names[0 if at is None else min(at + 1, len(names) - 1)]
            case _ if key in (_UP, "k") and names:
                self.queue = names[0 if at is None else max(at - 1, 0)]
            case "p" | "r" if at is None:
                self.outcome = "choose a queue first, with ↑ or ↓"
            case "p" if is_failed(self.queue):
                self.outcome = "no worker takes failed jobs, so there is nothing to pause"
            case "p" if at is not None:
                self._act(self._resume if queues[at]["paused"] else self._pause)
            case "r":
                self.asks = True

    def _type(self, key: str) -> None:
        if key in _ENTER:
            self.typing = False
        elif key == _ESCAPE:
            self.typing, self.wanted = False, ""
        elif key in _ERASE:
            self.wanted = self.wanted[:-1]
        elif key.isprintable():
            self.wanted += key

    def _act(self, action: Callable[[], str]) -> None:
        try:
            self.outcome = action()
        except PalermoError as error:
            self.outcome = f"{type(error).__name__}: {one_line(str(error))}"

    def _pause(self) -> str:
        self.inspector.queues.pause(self.queue)
        return f"paused {one_line(self.queue)}"

    def _resume(self) -> str:
        self.inspector.queues.resume(self.queue)
        return f"resumed {one_line(self.queue)}"

    def _requeue(self) -> str:
        # Escaped: the queue is meant, and not the names that it fits as a pattern.
        chosen = FailedFilter() if is_failed(self.queue) else FailedFilter(queue=glob.escape(self.queue))
        return f"requeued {count(len(self.inspector.failed.requeue(chosen)), 'job')}"

    @property
    def _of_queue(self) -> str:
        return "" if is_failed(self.queue) else f" of {one_line(self.queue)}"


def _keys(pressed: str) -> Iterator[str]:
    """The keys one by one; an arrow is one key."""
    while pressed:
        size = 3 if pressed.startswith((_UP, _DOWN)) else 1
        yield pressed[:size]
        pressed = pressed[size:]
