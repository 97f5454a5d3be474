"""The log of a worker: one line for each event, as text or as JSON with the same keys.

Every line that is logged in a job names the job. Palermo's own lines have a text and a tail of keys:
``log.info("job started id=%s job=%s", …)``. The formatters read keys and values from that format string, so the code
writes an event once for both formats. Lines of other libraries and of the jobs are events without a tail; the
formatters add the job.
"""

import json
import logging
import re
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TextIO

from palermo.jobs.current import current_job
from palermo.settings.environment import colours_refused

LEVELS = ("debug", "info", "warning", "error")

#: The attributes that every log record gets, for the user's own formats: %(palermo_id)s. Empty outside of a job.
ATTRIBUTES = ("palermo_id", "palermo_job", "palermo_queue", "palermo_attempt")

_CONVERSION = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?[a-zA-Z%]")
_PAIR = re.compile(r"(?:^| )([a-z_]+)=(%[-#0 +]*\d*(?:\.\d+)?([a-zA-Z]))(?= |$)")
_NEEDS_QUOTES = re.compile(r'[\s"\'=\x00-\x1f\x7f-\x9f\u2028\u2029]|^$')
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_COLOURS = {logging.DEBUG: "2", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "1;31"}

#: The attributes that every record has by itself; all others came by `extra`.
_USUAL = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "stacks"} | set(ATTRIBUTES)


def configure(*, level: str = "info", format: str = "text", stream: TextIO | None = None) -> None:
    """Have this process, and those it forks, log to `stream` (stderr). Every record then names its job.

    To be called before user code is imported: a `logging.basicConfig` in user code then changes
    nothing, and a handler that it adds can still use ATTRIBUTES in its format.
    """
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    coloured = target.isatty() and not colours_refused()
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter(colours=coloured))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    plain = logging.getLogRecordFactory()
    if not isinstance(plain, NamingRecords):
        logging.setLogRecordFactory(NamingRecords(plain))


class NamingRecords:
    """Makes log records that name the current job.

    A factory, not a filter: the filters of a logger do not see the records of the loggers below it, and the filters
    of a handler are lost when user code replaces the handler.
    """

    def __init__(self, plain: Callable[..., logging.LogRecord]) -> None:
        self._plain = plain

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._plain(*args, **kwargs)
        job = current_job()
        values = ("", "", "", "") if job is None else (job.id, job.job, job.queue, job.attempt)
        for name, value in zip(ATTRIBUTES, values, strict=True):
            setattr(record, name, value)
        return record


def fields(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """The event of a record, and its tail by key. Values are as they were given, numbers rounded as in the format."""
    event, tail = _split(record)
    found: dict[str, Any] = {}
    if getattr(record, "palermo_id", ""):
        names = [name.removeprefix("palermo_") for name in ATTRIBUTES]
        found = {name: getattr(record, f"palermo_{name}") for name in names}
    return event, {**found, **tail, **{key: value for key, value in record.__dict__.items() if key not in _USUAL}}


class _Format(NamedTuple):
    """A format string taken apart: the event, how many arguments it has, and of each pair of the tail what follows."""

    event: str
    arguments: int
    #: The key, the number of its argument, and how a fraction is rounded; "" for what is none.
    pairs: tuple[tuple[str, int, str], ...]
    #: How many arguments the whole text has.
    all_arguments: int


@lru_cache(maxsize=1_000)  # events are constants of the code
def _format(text: str) -> _Format | None:
    """The format string taken apart; None if it has no tail."""
    pairs = list(_PAIR.finditer(text))
    if not pairs:
        return None
    numbers = [found.start() for found in _CONVERSION.finditer(text) if not found[0].endswith("%")]
    start = pairs[0].start()
    rounded = [(pair[1], numbers.index(pair.start(2)), pair[2] if pair[3] in "fFeEgG" else "") for pair in pairs]
    return _Format(text[:start], sum(number < start for number in numbers), tuple(rounded), len(numbers))


def _split(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    text, args = record.msg, record.args
    if not record.name.startswith("palermo") or not isinstance(text, str) or not isinstance(args, tuple):
        return record.getMessage(), {}
    taken = _format(text)
    if taken is None or taken.all_arguments != len(args):
        return record.getMessage(), {}
    event = taken.event % args[: taken.arguments]
    return event, {key: _typed(rounding, args[number]) for key, number, rounding in taken.pairs}


def _typed(rounding: str, value: Any) -> Any:
    if rounding:
        return float(rounding % value)
    return value if isinstance(value, bool | int | float | None) else str(value)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
    return f"{moment.isoformat(timespec='milliseconds')}Z"


def _trace(record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info and record.exc_info[1] is not None:
        parts.append("".join(traceback.format_exception(record.exc_info[1])).rstrip())
    elif record.exc_text:
        parts.append(record.exc_text)
    # `extra={"stacks": …}` is how the worker shows the stacks of processes that raised nothing.
    parts += [text for text in (record.stack_info, getattr(record, "stacks", "")) if text]
    return "\n".join(parts)


class JsonFormatter(logging.Formatter):
    """Formats each record as one JSON object in one line: time, level, logger, event, and then the tail."""

    def format(self, record: logging.LogRecord) -> str:
        event, tail = fields(record)
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
        }
        # A key in a job's `extra` must not replace one of these.
        line |= {key: value for key, value in tail.items() if key not in line}
        if trace := _trace(record):
            line["traceback"] = trace
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Formats each record as time, level, event, and the tail as key=value. Further lines are indented."""

    def __init__(self, *, colours: bool = False) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        event, tail = fields(record)
        line = " ".join([event, *(f"{key}={_word(value)}" for key, value in tail.items())])
        if trace := _trace(record):
            line += f"\n{trace}"
        line = _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", line.replace("\r\n", "\n"))
        level = record.levelname
        if self._colours and record.levelno in _COLOURS:
            level = f"\x1b[{_COLOURS[record.levelno]}m{level}\x1b[0m"
        # Indented, so that no text from a job can look like an event of its own.
        return f"{_time(record)} {level} " + line.replace("\n", "\n    ")


def _word(value: Any) -> str:
    """A value as one word: in Python's quotes if it holds a blank or another character that would end the word."""
    text = str(value)
    return repr(text) if _NEEDS_QUOTES.search(text) else text
