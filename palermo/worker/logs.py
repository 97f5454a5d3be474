"""The log of a worker: one line per event, as text or as JSON with the same keys.

Every line that is logged in a job names the job. Palermo's own lines have a text and a tail of keys: ``log.info("job
started id=%s job=%s", …)``. The formatters read keys and values from that format string, so an event is written once
for both formats. Lines of other libraries and of the jobs are events without a tail; the formatters add the job.
"""

import json
import logging
import os
import re
import select
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TextIO

from palermo.core.own_headers import own_headers
from palermo.jobs.current import CurrentJob, current_job
from palermo.settings.environment import colours_refused
from palermo.worker.signals import block_in_this_thread

#: Attributes of every log record, for the user's own formats: %(palermo_id)s. Empty outside of a job.
ATTRIBUTES = ("palermo_id", "palermo_job", "palermo_queue", "palermo_attempt")

#: The attribute with the job's own headers (not Palermo's); "" for none.
_HEADERS = "palermo_headers"

_CONVERSION = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?[a-zA-Z%]")
_PAIR = re.compile(r"(?:^| )([a-z_]+)=(%[-#0 +]*\d*(?:\.\d+)?([a-zA-Z]))(?= |$)")
_NEEDS_QUOTES = re.compile(r'[\s"\'=\x00-\x1f\x7f-\x9f\u2028\u2029]|^$')
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_COLOURS = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}

#: Standard attributes of a record; all others come from `extra`.
_USUAL = (
    frozenset(logging.makeLogRecord({}).__dict__)
    | {"message", "asctime", "taskName", "stacks"}
    | {*ATTRIBUTES, _HEADERS}
)


def configure(*, level: str = "info", format: str = "text", stream: TextIO | None = None) -> None:
    """Make this process, and those it forks, log to `stream` (stderr). Every record then names its job.

    Call this before user code is imported: a `logging.basicConfig` in user code then changes nothing, and a handler
    that it adds can still use ATTRIBUTES in its format.
    """
    target = sys.stderr if stream is None else stream
    coloured = target.isatty() and not colours_refused()
    handler = LineHandler(target, JsonFormatter() if format == "json" else TextFormatter(colours=coloured))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    plain = logging.getLogRecordFactory()
    if not isinstance(plain, NamingRecords):
        logging.setLogRecordFactory(NamingRecords(plain))


def write_in_background() -> None:
    """Log in a thread, so that this process never waits for the reader of its log."""
    for handler in _own_handlers():
        handler.write_in_background()


def drain(within: float = 1.0) -> None:
    """Wait until the log is written, for at most this many seconds."""
    for handler in _own_handlers():
        handler.drain(within)


def _own_handlers() -> "list[LineHandler]":
    return [handler for handler in logging.root.handlers if isinstance(handler, LineHandler)]


#: Maximum number of waiting bytes.
BUFFER = 4_000_000


class LineWriter:
    """Writes lines to an open file in its own thread, so that a blocked reader cannot stop the worker's loop.

    Lines wait in a buffer of bounded size. If it is full, lines are dropped, and a later line reports how many.
    """

    def __init__(self, file: int, dropped_line: Callable[[int], str], *, buffer: int = BUFFER) -> None:
        """`file` is a descriptor; `dropped_line` returns the line that reports the number of dropped lines."""
        self._file = file
        self._dropped_line = dropped_line
        self._buffer = buffer
        self._changed = threading.Condition()
        self._lines: list[bytes] = []
        self._size = 0
        self._dropped = 0
        self._idle = False
        threading.Thread(target=self._run, name="palermo log", daemon=True).start()

    def put(self, line: str) -> None:
        """Queue the line. Never waits for the file."""
        data = line.encode(errors="backslashreplace") + b"\n"
        with self._changed:
            if self._size + len(data) > self._buffer:
                self._dropped += 1
                return
            self._lines.append(data)
            self._size += len(data)
            if self._idle:
                self._idle = False
                self._changed.notify_all()

    def drain(self, within: float) -> None:
        """Wait until all lines are written, for at most this many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle, within)

    def _run(self) -> None:
        block_in_this_thread()
        while True:
            with self._changed:
                if not self._lines and not self._dropped:
                    self._idle = True
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: not self._idle)
                lines, self._lines, self._size = self._lines, [], 0
                dropped, self._dropped = self._dropped, 0
            if dropped:
                lines.append(self._dropped_line(dropped).encode() + b"\n")
            self._write(b"".join(lines))

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._file, left) :]
            except BlockingIOError:  # another program has set O_NONBLOCK on the file
                select.select([], [self._file], [])
            except OSError:  # closed, or no reader is left
                return


class LineHandler(logging.StreamHandler[TextIO]):
    """Writes the line of each record to a stream."""

    def __init__(self, stream: TextIO, formatter: "LineFormatter") -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self._lines = formatter
        #: Writes the lines in its own thread; None if they are written directly.
        self._writer: LineWriter | None = None

    def write_in_background(self) -> None:
        """Write in a thread from now on. Only for a process that does not fork afterwards."""

        def dropped_line(count: int) -> str:
            text = "log lines dropped, because nothing read the log lines=%d"
            return self._lines.line(time.time(), logging.WARNING, "palermo.worker", text, (count,))

        self._writer = LineWriter(self.stream.fileno(), dropped_line)

    def drain(self, within: float) -> None:
        """Wait until all lines are written, for at most this many seconds."""
        if self._writer is not None:
            self._writer.drain(within)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of the record."""
        try:
            self._write(self.format(record))
        except Exception:
            self.handleError(record)

    def gets_alone(self, logger: logging.Logger) -> bool:
        """Whether only this handler sees the records of the logger: no other handler, filter or factory.

        Nor a function that replaces one of logging's own, as sentry_sdk does.
        """
        factory = logging.getLogRecordFactory()
        return (
            logging.Logger.callHandlers.__module__ == logging.__name__
            and _handlers(logger) == [self]
            and not (self.level or self.filters or logger.filters)
            and self.formatter is self._lines
            and isinstance(factory, NamingRecords)
            and factory.plain is logging.LogRecord
        )

    def write(self, logger: logging.Logger, level: int, text: str, args: tuple[Any, ...]) -> None:
        """Write the line that the record with these values would become."""
        try:
            line = self._lines.line(time.time(), level, logger.name, text, args)
            with self.lock or nullcontext():
                self._write(line)
        except Exception:
            self.handleError(logger.makeRecord(logger.name, level, "(unknown file)", 0, text, args, None))

    def _write(self, line: str) -> None:
        if self._writer is None:
            self.stream.write(line + "\n")
            self.stream.flush()
        else:
            self._writer.put(line)


def _handlers(logger: logging.Logger | None) -> list[logging.Handler]:
    """All handlers that get the records of the logger."""
    found = list[logging.Handler]()
    while logger is not None:
        found += logger.handlers
        logger = logger.parent if logger.propagate else None
    return found


def log_event(logger: logging.Logger, level: int, text: str, *args: Any) -> None:
    """Do the same as `logger.log(level, text, *args)`, for the lines that a worker's parent writes for each job.

    Fast path: no record is created that only LineHandler would see. A line of benchmarks.drain: 65 µs without, 28
    with.
    """
    if logger.isEnabledFor(level):
        handlers = logging.root.handlers
        if handlers and isinstance(handler := handlers[0], LineHandler) and handler.gets_alone(logger):
            handler.write(logger, level, text, args)
        else:
            logger.log(level, text, *args, stacklevel=2)


class NamingRecords:
    """Creates log records that name the current job.

    A factory, not a filter: a logger's filters do not see the records of its child loggers, and a handler's filters
    are lost when user code replaces the handler.
    """

    def __init__(self, plain: Callable[..., logging.LogRecord]) -> None:
        #: Creates the records.
        self.plain = plain

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self.plain(*args, **kwargs)
        job = current_job()
        record.__dict__ |= _NAMELESS if job is None else _named(job)
        return record


_NAMELESS = dict.fromkeys((*ATTRIBUTES, _HEADERS), "")


def _named(job: CurrentJob) -> dict[str, Any]:
    named = dict[str, Any](zip(ATTRIBUTES, (job.id, job.job, job.queue, job.attempt), strict=True))
    return {**named, _HEADERS: own_headers(job.headers) or ""}


def fields(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """The event of a record, and its tail by key. Values are unchanged, except for numbers rounded by the format."""
    text, args = record.msg, record.args
    if record.name.startswith("palermo") and isinstance(text, str) and isinstance(args, tuple):
        event, tail = _split(text, args)
    else:
        event, tail = record.getMessage(), {}
    if getattr(record, "palermo_id", ""):
        tail = {name.removeprefix("palermo_"): getattr(record, name) for name in ATTRIBUTES} | tail
    if headers := getattr(record, _HEADERS, None):
        tail["headers"] = headers
    return event, tail | {key: value for key, value in record.__dict__.items() if key not in _USUAL}


class _Format(NamedTuple):
    """A parsed format string: the event, and the pairs of the tail."""

    event: str
    arguments: int
    #: The key, the number of its argument, and the rounding of a fraction; "" for other values.
    pairs: tuple[tuple[str, int, str], ...]
    #: Number of arguments of the whole text.
    all_arguments: int
    #: Whether each conversion is %s or %d. Then `text % args` makes the same line, if no value needs quotes.
    plain: bool


@lru_cache(maxsize=1_000)  # events are constants in the code
def _format(text: str) -> _Format | None:
    """The parsed format string; None if it has no tail."""
    pairs = list(_PAIR.finditer(text))
    if not pairs:
        return None
    conversions = [found for found in _CONVERSION.finditer(text) if not found[0].endswith("%")]
    numbers = [found.start() for found in conversions]
    start = pairs[0].start()
    rounded = [(pair[1], numbers.index(pair.start(2)), pair[2] if pair[3] in "fFeEgG" else "") for pair in pairs]
    plain = all(found[0] in ("%s", "%d") for found in conversions)
    return _Format(text[:start], sum(number < start for number in numbers), tuple(rounded), len(numbers), plain)


def _split(text: str, args: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    taken = _format(text)
    if taken is None or taken.all_arguments != len(args):
        return text % args if args else text, {}
    event = taken.event % args[: taken.arguments]
    return event, {key: _typed(rounding, args[number]) for key, number, rounding in taken.pairs}


def _typed(rounding: str, value: Any) -> Any:
    if rounding:
        return float(rounding % value)
    return value if isinstance(value, str | int | float | None) else str(value)


def _time(created: float) -> str:
    second, millisecond = divmod(int(created * 1_000 + _HALF_A_MICROSECOND), 1_000)
    return f"{_second(second)}.{millisecond:03d}Z"


#: In milliseconds. A current timestamp as a float has errors of a fraction of it: .123 must not become .122.
_HALF_A_MICROSECOND = 0.0005


@lru_cache(maxsize=8)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _trace(record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info and record.exc_info[1] is not None:
        parts.append("".join(traceback.format_exception(record.exc_info[1])).rstrip())
    elif record.exc_text:
        parts.append(record.exc_text)
    # The worker uses `extra={"stacks": …}` to show tracebacks and stacks of its child processes.
    parts += [text for text in (record.stack_info, getattr(record, "stacks", "")) if text]
    return "\n".join(parts)


class LineFormatter(logging.Formatter, ABC):
    """Formats each record as one line, with its event and its tail."""

    def format(self, record: logging.LogRecord) -> str:
        return self._line(record.created, record.levelname, record.name, *fields(record), _trace(record))

    def line(self, created: float, level: int, logger: str, text: str, args: tuple[Any, ...]) -> str:
        """The line of a Palermo record with these values."""
        return self._line(created, logging.getLevelName(level), logger, *_split(text, args), "")

    @abstractmethod
    def _line(self, created: float, level: str, logger: str, event: str, tail: dict[str, Any], trace: str) -> str:
        """The line of a record with these parts."""


class JsonFormatter(LineFormatter):
    """Formats each record as one JSON object: time, level, logger, event, and then the tail."""

    def _line(self, created: float, level: str, logger: str, event: str, tail: dict[str, Any], trace: str) -> str:
        head = {"time": _time(created), "level": level.lower(), "logger": logger, "event": event}
        # A key in a job's `extra` must not replace one of these.
        line = head | {key: value for key, value in tail.items() if key not in head}
        if trace:
            line["traceback"] = trace
        return _to_json(line)


_to_json = json.JSONEncoder(default=str).encode


class TextFormatter(LineFormatter):
    """Formats each record as time, level, event, and the tail as key=value. Further lines are indented."""

    def __init__(self, *, colours: bool = False) -> None:
        super().__init__()
        self._colours = colours

    def line(self, created: float, level: int, logger: str, text: str, args: tuple[Any, ...]) -> str:
        # Part of `log_event`'s fast path: no value needs quotes. In a loop 4 µs, 8 without.
        taken = _format(text)
        if taken is not None and taken.plain:
            values = [*map(str, args)]
            if "" not in values and _NEEDS_QUOTES.search("".join(values)) is None:
                return f"{_time(created)} {self._level(logging.getLevelName(level))} {text % args}"
        return super().line(created, level, logger, text, args)

    def _line(self, created: float, level: str, logger: str, event: str, tail: dict[str, Any], trace: str) -> str:
        line = " ".join([event, *(f"{key}={_word(value)}" for key, value in tail.items())])
        if trace:
            line += f"\n{trace}"
        line = _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", line.replace("\r\n", "\n"))
        # Indented, so that no text of a job can look like a separate event.
        return f"{_time(created)} {self._level(level)} " + line.replace("\n", "\n    ")

    def _level(self, level: str) -> str:
        return f"\x1b[{_COLOURS[level]}m{level}\x1b[0m" if self._colours and level in _COLOURS else level


def _word(value: Any) -> str:
    """A value as one word: quoted as in Python if it contains a space or another character that would end the word."""
    text = str(value)
    return repr(text) if _NEEDS_QUOTES.search(text) else text
