"""Formats numbers, times and JSON for the pages. Most functions are template filters.

Ages are relative to this process's clock, `now`, but instants come from other machines: the publisher's clock when a
job was enqueued, and the worker's when it started or failed. An age is never negative. For a past event that is more
than a minute in the future, the pages say that its clock is ahead. Only `due` formats future instants. The pages'
script follows the same rules.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup
from msgspec import Struct

from palermo.contract.rows import MAX_SHOWN
from palermo.core.text import count as plural
from palermo.core.text import nearest
from palermo.webui import tuning

# A string may end at the end of the text, where the text was cut. Otherwise the search would start again at each quote
# in it.
_TOKEN = re.compile(
    r'(?P<key>"(?:[^"\\]|\\.)*")(?=\s*:)|(?P<text>"(?:[^"\\]|\\.)*(?:"|\\?\Z))|(?P<number>-?\d[\d.eE+-]*)|(?P<word>true|false|null)'
)

#: Maximum number of characters of a list or object on one line.
_SHORT = 72


#: Names with more characters than this may be broken into lines at the end of a part: after one of . _ : / -, or before
#: a capital letter.
_LONG_NAME, _PART_END = 16, re.compile(r"(?<=[._:/-])(?![._:/-])|(?<=[a-z0-9])(?=[A-Z])")

_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def name(text: str) -> Markup:
    """Return the name of a job or error. Browsers may break a long one between its parts."""
    return Markup("<wbr>").join(_PART_END.split(text) if len(text) > _LONG_NAME else [text])


def count(number: int | None) -> str:
    """Format a number as `12,345`, or a dash for None."""
    return "–" if number is None else f"{number:,}"


def rate(jobs_per_second: float | None) -> str:
    """Format jobs per second with the significant digits."""
    if jobs_per_second is None:
        return "–"
    if jobs_per_second == 0:
        return "0"
    if jobs_per_second < 0.05:
        return "<0.1"
    return f"{jobs_per_second:.1f}" if jobs_per_second < 10 else f"{jobs_per_second:,.0f}"


def duration(seconds: float | None) -> str:
    """Format seconds with at most two units: `3 min 12 s`. The pages' script does the same."""
    if seconds is None:
        return "–"
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600} h"


def as_unit(value: float | None, unit: str) -> str:
    """Format a chart's number in the unit of its plot."""
    if value is None:
        return "–"
    match unit:
        case "seconds":
            return took(value)
        case "bytes":
            return f"{value / 1e6:,.0f} MB"
        case "percent":
            return f"{value:,.0f}%"
        case _:
            return f"{value:,.3g}" if value < 1_000 else f"{value:,.0f}"


def took(seconds: float | None) -> str:
    """Format a duration that may be less than a second: `12 ms`, `1.5 s`."""
    if seconds is not None and 0 < seconds < 0.01:
        return f"{seconds * 1000:.2g} ms"
    if seconds is not None and 0 <= seconds < 10:
        return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
    return duration(seconds)


def moment(instant: str) -> datetime | None:
    """Parse an instant in a row as UTC; None if it is invalid or outside of the years 1 to 9999."""
    try:
        read = datetime.fromisoformat(instant)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def since(instant: str | None, now: datetime) -> float | None:
    """Return the seconds from a row's instant to `now`."""
    at = moment(instant) if instant else None
    return None if at is None else (now - at).total_seconds()


def ago(instant: str, now: datetime) -> str:
    """Format a past instant: `3 min ago`."""
    seconds = since(instant, now)
    if seconds is None:
        return instant
    if seconds < -tuning.MINUTE:
        return _ahead(seconds)
    return "now" if seconds < 1 else f"{_short(seconds)} ago"


def due(instant: str, now: datetime) -> str:
    """Format the instant at which something is due: `in 2 h`, or `3 min ago` once it has passed."""
    seconds = since(instant, now)
    return ago(instant, now) if seconds is None or seconds > -1 else f"in {_short(-seconds)}"


def elapsed(instant: str, now: datetime) -> str:
    """Format the time since an instant: `3 min 12 s`."""
    seconds = since(instant, now)
    return _ahead(seconds) if seconds is not None and seconds < -tuning.MINUTE else duration(seconds)


def _ahead(seconds: float) -> str:
    return f"clock {_short(-seconds)} ahead"


def _short(seconds: float) -> str:
    """Format a duration with one unit."""
    return " ".join(duration(seconds).split()[:2])


def absolute(instant: str) -> str:
    """Format an instant: `2026-11-21 09:03:12 UTC`."""
    at = moment(instant)
    return instant if at is None else at.strftime("%Y-%m-%d %H:%M:%S UTC")


def readable_instants(text: str) -> str:
    """Format the instants in a text."""
    return _INSTANT.sub(lambda found: absolute(found[0]), text)


def element_key(name: str) -> str:
    """Return a short key for element ids that stands for this name, whatever characters it contains."""
    return hashlib.blake2b(name.encode(), digest_size=6).hexdigest()


#: Displayed names of actions whose names in the journal aren't clear on their own.
_ACTIONS = {
    "put recurring": "save recurring job",
    "remove recurring": "remove recurring job",
    "enable recurring": "enable recurring job",
    "disable recurring": "disable recurring job",
    "run recurring": "run recurring job now",
    "run now": "run scheduled jobs now",
    "reschedule": "move scheduled jobs",
    "cancel scheduled": "cancel scheduled jobs",
    "give up": "give up retries",
    "edit": "edit job",
    "run again": "run job again",
    "dequeue": "remove jobs from queue",
    "purge": "purge queue",
    "purge all": "purge all queues",
    "pause": "pause queue",
    "pause all": "pause all queues",
    "resume": "resume queue",
    "resume all": "resume all queues",
    "migrate": "change type of queue",
    "free keys": "free unique keys",
    "replay events": "replay old events",
    "unsubscribe": "unsubscribe group",
    "stop operation": "stop long operation",
    "stack workers": "read stacks of workers",
}


def action(name: str) -> str:
    """The words for an action of the journal: `save recurring job` for `put recurring`."""
    return _ACTIONS.get(name, name)


FILTERS: dict[str, Callable[..., Any]] = {
    "name": name,
    "count": count,
    "rate": rate,
    "duration": duration,
    "took": took,
    "as_unit": as_unit,
    "ago": ago,
    "due": due,
    "elapsed": elapsed,
    "absolute": absolute,
    "plural": plural,
    "nearest": nearest,
    "action": action,
    "element_key": element_key,
}


class PrettyJson(Struct, frozen=True):
    """The text of a value, as a whole and in pieces of (kind, text). The kind is "" for text without a colour."""

    text: str
    #: Whether the text was too long and was cut.
    cut: bool

    def pieces(self) -> Iterator[tuple[str, str]]:
        end = 0
        for found in _TOKEN.finditer(self.text):
            if found.start() > end:
                yield "", self.text[end : found.start()]
            yield found.lastgroup or "", found[0]
            end = found.end()
        if end < len(self.text):
            yield "", self.text[end:]


def pretty_json(value: Any) -> PrettyJson:
    """Return the value as indented JSON, with short lists and objects on one line."""
    text = _written(value, 0)
    return PrettyJson(text[:MAX_SHOWN], len(text) > MAX_SHOWN)


def _written(value: Any, indent: int) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= _SHORT or not isinstance(value, dict | list) or not value:
        return line
    pad = " " * (indent + 2)
    if isinstance(value, list):
        inside = [pad + _written(item, indent + 2) for item in value]
        return "[\n" + ",\n".join(inside) + "\n" + " " * indent + "]"
    inside = [
        f"{pad}{json.dumps(key, ensure_ascii=False)}: {_written(item, indent + 2)}" for key, item in value.items()
    ]
    return "{\n" + ",\n".join(inside) + "\n" + " " * indent + "}"
