"""The reports of a running job, its progress and its log lines, as a slot sends them to the parent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: The most lines of a run, the most characters of a line, and the most characters of a progress text.
MAX_LINES, MAX_LINE, MAX_TEXT = 1_000, 1_000, 200

#: The line that stands in place of the first line above MAX_LINES.
NO_MORE = f"more than {MAX_LINES:,} lines, the rest is not kept"


@dataclass(frozen=True, slots=True)
class Report:
    """The progress and the log lines that a slot reported of its job at one time."""

    #: From 0 to 1; None if the job gave only the text.
    fraction: float | None = None
    text: str = ""
    #: Whether the report has a progress at all.
    moved: bool = False
    lines: tuple[str, ...] = ()


def unpack_report(reply: Mapping[str, Any]) -> Report | None:
    """The report that `Reporter` sent; None if the reply is no report. It comes from a process that runs user code."""
    match reply:
        case {"report": {"lines": list(lines), "progress": None}} if _are_lines(lines):
            return Report(lines=tuple(lines))
        case {"report": {"lines": list(lines), "progress": [None | float() | int() as fraction, str(text)]}} if (
            _are_lines(lines) and (fraction is None or 0 <= fraction <= 1) and len(text) <= MAX_TEXT
        ):
            return Report(fraction, text, moved=True, lines=tuple(lines))
    return None


def _are_lines(lines: list[Any]) -> bool:
    return len(lines) <= MAX_LINES + 1 and all(isinstance(line, str) and len(line) <= MAX_LINE for line in lines)
