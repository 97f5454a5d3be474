"""The keys of `palermo top`: choose a queue, pause or resume it, requeue its failed jobs, filter the view."""

import re
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from palermo.contract.rows import Row
from palermo.core.text import count, exactly, one_line
from palermo.core.topology import is_failed
from palermo.errors import PalermoError
from palermo.inspector.inspector import Inspector
from palermo.views.filter import JobFilter

#: One key; an arrow is one key.
_KEY = re.compile("\x1b\\[[AB]|.", re.DOTALL)

#: The keys that choose another queue: how far each goes down.
_STEPS = {"\x1b[B": 1, "j": 1, "\x1b[A": -1, "k": -1}

_ENTER, _ESCAPE, _ERASE = "\r\n", "\x1b", "\x7f\b"

#: The last line, while nothing is asked or typed.
HELP = "q quits  ↑↓ queue  p pause/resume  r requeue  / filter"


class TopKeys(Struct):
    """What the keys have chosen so far."""

    inspector: Inspector
    #: The chosen queue; "" for none.
    queue: str = ""
    #: The view shows only queues, jobs and errors with this in their names.
    wanted: str = ""
    #: Whether keys are typed into the filter, or the next key answers a question.
    mode: Literal["", "typing", "asking"] = ""
    #: What the last key did.
    outcome: str = ""

    @property
    def foot(self) -> str:
        """The last line of the screen."""
        match self.mode:
            case "typing":
                return f"filter: {one_line(self.wanted)}_  Enter keeps it, Escape removes it"
            case "asking":
                of_queue = "" if is_failed(self.queue) else f" of {one_line(self.queue)}"
                return f"requeue all failed jobs{of_queue}? y or n"
            case _:
                return self.outcome or (f"{HELP}  filter: {one_line(self.wanted)}" if self.wanted else HELP)

    def press(self, pressed: str, queues: Sequence[Row]) -> bool:
        """Obey these keys; `queues` are the displayed rows, in their order. Returns whether to quit."""
        for key in _KEY.findall(pressed):
            if self.mode == "typing":
                self._type(key)
            elif self.mode == "asking":
                self.mode = ""
                if key == "y":
                    self._change("requeue")
            elif key in "qQ":
                return True
            else:
                self.outcome = ""
                self._obey(key, queues)
        return False

    def _obey(self, key: str, queues: Sequence[Row]) -> None:
        names = [row["name"] for row in queues]
        if key == "/":
            self.mode = "typing"
        elif key in _STEPS and names:
            at = names.index(self.queue) + _STEPS[key] if self.queue in names else 0
            self.queue = names[min(max(at, 0), len(names) - 1)]
        elif key in "pr" and self.queue not in names:
            self.outcome = "choose a queue first, with ↑ or ↓"
        elif key == "p" and is_failed(self.queue):
            self.outcome = "no worker takes failed jobs, so there is nothing to pause"
        elif key == "p":
            self._change("resume" if queues[names.index(self.queue)]["paused"] else "pause")
        elif key == "r":
            self.mode = "asking"

    def _type(self, key: str) -> None:
        if key in _ENTER:
            self.mode = ""
        elif key == _ESCAPE:
            self.mode, self.wanted = "", ""
        elif key in _ERASE:
            self.wanted = self.wanted[:-1]
        elif key.isprintable():
            self.wanted += key

    def _change(self, action: Literal["pause", "resume", "requeue"]) -> None:
        try:
            if action == "requeue":
                chosen = JobFilter() if is_failed(self.queue) else JobFilter(queue=exactly(self.queue))
                self.outcome = f"requeued {count(len(self.inspector.failed.requeue(chosen)), 'job')}"
            elif action == "pause":
                self.inspector.queues.pause(self.queue)
                self.outcome = f"paused {one_line(self.queue)}"
            else:
                self.inspector.queues.resume(self.queue)
                self.outcome = f"resumed {one_line(self.queue)}"
        except PalermoError as error:
            self.outcome = f"{type(error).__name__}: {one_line(str(error))}"
