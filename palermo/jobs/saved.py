"""The state that a job saves for its next run: the value of `current_job().save` and the positions of `resume` loops.

The message carries it as JSON in the header `saved`: {"value": …, "loops": {name: [done, key]}}. `done` is the number
of finished items. A loop that counts positions has no key, and a finished loop is []. An item is finished when the loop
asks for the next one, so the saved position is never ahead of the work.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from palermo.core.arguments import about, brief
from palermo.core.message import MAX_SAVED
from palermo.errors import DecodeError, EncodeError, HeaderInvalid, UsageError

#: Maximum number of characters of a value shown in an error.
_SHOWN = 80


class SavedState:
    """The state that one run loads and saves."""

    def __init__(
        self,
        text: str | None,
        *,
        job: str,
        write: Callable[[object], bytes],
        read: Callable[[bytes], object],
        report: Callable[[str], None],
        end_if_stopping: Callable[[], None],
    ) -> None:
        """`text` is the header; `job` is the job's name for errors. `write` and `read` are a serializer's methods.

        `report` receives the new text. `end_if_stopping` raises the error that ends the run when the worker is
        stopping. Raises HeaderInvalid for a text not written by Palermo, and DecodeError for a value that can't be
        read.
        """
        self._job = job
        self._write = write
        self._read = read
        self._report = report
        self.end_if_stopping = end_if_stopping
        #: Each loop's number of finished items and last key, by name; empty once the loop has ended.
        self.loops: dict[str, Sequence[Any]] = {}
        self.value: Any = None
        #: The loops started in this run.
        self._begun: set[str] = set()
        if text is not None:
            self._load(text)
        #: The value as JSON.
        self._value_text = "" if self.value is None else self._json(self.value, "the saved value")
        self._loop_texts = {name: self._json(list(place), "the place of a loop") for name, place in self.loops.items()}

    def save(self, value: Any) -> None:
        """Save a value for the next run. Raises EncodeError."""
        text = "" if value is None else self._json(value, "the saved value")
        self._send(text, self._loop_texts, value, "the saved value")
        self.value, self._value_text = value, text

    def begin(self, name: str) -> Sequence[Any]:
        """Start a loop and return its position, which is empty if the loop has ended. Raises UsageError if the name is
        used twice, and drops all positions, because the next run would otherwise take the second loop for finished.
        """
        if name in self._begun:
            self._loop_texts.clear()
            self._send(self._value_text, {}, name, "the name of a loop")
            raise UsageError(
                f"job {self._job} has two palermo.resume loops named {name!r}, so the second would start at the"
                " position of the first. Give each its own name: palermo.resume(…, name='import')."
            )
        self._begun.add(name)
        return self.loops.get(name, (0,))

    def key_text(self, key: object, name: str) -> str:
        """Return an item's key as JSON. Raises EncodeError."""
        return self._json(key, _key_of(name))

    def move(self, name: str, done: int, key: object = None, text: str = "") -> None:
        """Record that `done` items of a loop are finished; `text` is the last key as JSON. Raises EncodeError."""
        place = f"[{done},{text}]" if text else f"[{done}]"
        self._send(self._value_text, {**self._loop_texts, name: place}, key if text else done, _key_of(name))
        self._loop_texts[name] = place

    def end(self, name: str) -> None:
        """Record that the loop has ended, so that it has no items in the next run."""
        self._send(self._value_text, {**self._loop_texts, name: "[]"}, name, "the name of a loop")
        self._loop_texts[name] = "[]"

    def _load(self, text: str) -> None:
        try:
            found = self._read(text.encode())
        except DecodeError as error:
            raise DecodeError(f"the saved state of job {self._job} cannot be read: {error}") from None
        match found:
            case {"loops": dict(loops), **more} if all(map(_is_place, loops.values())):
                self.loops, self.value = loops, more.get("value")
            case _:
                raise HeaderInvalid(
                    f"header 'saved' of job {self._job} is {text[:_SHOWN]!r}, which is not from Palermo. Fix the"
                    " program that published it."
                )

    def _json(self, value: object, what: str) -> str:
        try:
            data = self._write(value)
        except EncodeError as error:
            raise EncodeError(f"{what}, {brief(value):.{_SHOWN}}, cannot be saved: {about(str(error), 'it')}") from None
        if b'"class":' in data:
            self._read(data)  # check now rather than in the next run
        return data.decode()

    def _send(self, value: str, loops: dict[str, str], shown: object, what: str) -> None:
        """Report this state to the worker. Raises EncodeError if it is too large."""
        places = ",".join(f"{json.dumps(name)}:{place}" for name, place in loops.items())
        text = f'{{"value":{value},"loops":{{{places}}}}}' if value else f'{{"loops":{{{places}}}}}'
        if len(text) > MAX_SAVED // 4 and (size := len(text.encode())) > MAX_SAVED:
            raise EncodeError(
                f"with {what}, {brief(shown):.{_SHOWN}}, job {self._job} would save {size:,} bytes; the maximum is"
                f" {MAX_SAVED:,}. Save an id of the data instead, and use fewer named loops."
            )
        self._report(text)


def _key_of(name: str) -> str:
    return f"the key of loop {name!r}" if name else "the key of the loop"


def _is_place(place: object) -> bool:
    return isinstance(place, list) and len(place) <= 2 and (not place or isinstance(place[0], int))
