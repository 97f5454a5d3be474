"""A worker's log: one line per event, as text or as JSON with the same keys.

Lines logged during a job name the job. Palermo's own lines have a text and key-value pairs: ``log.info("job started
id=%s job=%s", …)``. The formatters read the keys from that format string, so one call serves both formats. Lines of
jobs and other libraries have no pairs; the formatters add the job.
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

#: Attributes of every log record, for custom formats: %(palermo_id)s. Empty outside of a job.
ATTRIBUTES = ("palermo_id", "palermo_job", "palermo_queue", "palermo_attempt")

#: The attribute with the job's own headers, or "".
_HEADERS = "palermo_headers"

_CONVERSION = re.compile(r"%[-#0 +]*\d*(?:\.\d+)?[a-zA-Z%]")
_PAIR = re.compile(r"(?:^| )([a-z_]+)=(%[-#0 +]*\d*(?:\.\d+)?([a-zA-Z]))(?= |$)")
_NEEDS_QUOTES = re.compile(r'[\s"\'=\x00-\x1f\x7f-\x9f\u2028\u2029]|^$')
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_COLOURS = {"DEBUG": "2", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}

#: The standard attributes of a record. All others come from `extra`.
_USUAL = (
    frozenset(logging.makeLogRecord({}).__dict__)
    | {"message", "asctime", "taskName", "stacks"}
    | {*ATTRIBUTES, _HEADERS}
)


def configure(*, level: str = "info", format: str = "text", stream: TextIO | None = None) -> None:
    """Log to `stream` (default: stderr) in this process and those forked from it. Records name their job.

    Must be called before user code is imported. A `logging.basicConfig` in user code then has no effect, and handlers
    that it adds can use ATTRIBUTES in their format.
    """
    target = sys.stderr if stream is None else stream
    coloured = target.isatty() and not colours_refused()
    handler = LineHandler(target, JsonFormatter() if format == "json" else TextFormatter(colours=coloured))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    plain = logging.getLogRecordFactory()
    if not isinstance(plain, NamingRecords):
        logging.setLogRecordFactory(NamingRecords(plain))


def write_in_background() -> None:
    """Write the log in a thread, so that this process never waits for a reader."""
    for handler in _own_handlers():
        handler.write_in_background()


def drain(within: float = 1.0) -> None:
    """Wait until the log is written, at most `within` seconds."""
    for handler in _own_handlers():
        handler.drain(within)


def _own_handlers() -> "list[LineHandler]":
    return [handler for handler in logging.root.handlers if isinstance(handler, LineHandler)]


#: Maximum number of buffered bytes.
BUFFER = 4_000_000


class LineWriter:
    """Writes lines to a file in its own thread, so that a blocked reader can't stop the worker's loop.

    The buffer is limited. If it is full, lines are dropped, and a later line reports their number.
    """

    def __init__(self, file: int, dropped_line: Callable[[int], str], *, buffer: int = BUFFER) -> None:
        """`file` is a descriptor; `dropped_line` returns the line that reports a number of dropped lines."""
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
        """Queue a line. Never waits for the file."""
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
        """Wait until all lines are written, at most `within` seconds."""
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
            except BlockingIOError:  # another program has set O_NONBLOCK
                select.select([], [self._file], [])
            except OSError:  # closed, or without a reader
                return


class LineHandler(logging.StreamHandler[TextIO]):
    def __init__(self, stream: TextIO, formatter: "LineFormatter") -> None:
        super().__init__(stream)
        self.setFormatter(formatter)
        self._lines = formatter
        #: Writes lines in its own thread; None if they are written directly.
        self._writer: LineWriter | None = None

    def write_in_background(self) -> None:
        """Write in a thread from now on. The process must not fork afterwards."""

        def dropped_line(count: int) -> str:
            text = "log lines dropped, because nothing read the log lines=%d"
            return self._lines.line(time.time(), logging.WARNING, "palermo.worker", text, (count,))

        self._writer = LineWriter(self.stream.fileno(), dropped_line)

    def drain(self, within: float) -> None:
        """Wait until all lines are written, at most `within` seconds."""
        if self._writer is not None:
            self._writer.drain(within)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(self.format(record))
        except Exception:
            self.handleError(record)

    def write(self, logger: logging.Logger, level: int, text: str, args: tuple[Any, ...]) -> None:
        """Write the line for a record with these values, without creating the record."""
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


def log_event(logger: logging.Logger, level: int, text: str, *args: Any) -> None:
    """Like `logger.log(level, text, *args)`, for the lines that the parent writes for each job.

    Fast path: creates no record if a LineHandler is the root logger's only handler. A line of benchmarks.drain takes
    65 µs without, 28 with.
    """
    if logger.isEnabledFor(level):
        match logging.root.handlers:
            case [LineHandler() as handler]:
                handler.write(logger, level, text, args)
            case _:
                logger.log(level, text, *args, stacklevel=2)


class NamingRecords:
    """Creates log records that name the current job.

    It is a factory because filters don't work: those of a logger don't see the records of its child loggers, and those
    of a handler are lost when user code replaces the handler.
    """

    def __init__(self, plain: Callable[..., logging.LogRecord]) -> None:
        #: The original factory.
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
    """Split a record into its event and its pairs. Values are unchanged, except for rounded numbers."""
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
    """A parsed format string: the event and the pairs."""

    event: str
    arguments: int
    #: Each pair's key, the number of its argument, and the rounding of a fraction or "".
    pairs: tuple[tuple[str, int, str], ...]
    #: Number of arguments in the whole text.
    all_arguments: int
    #: Whether all conversions are %s or %d, so that `text % args` makes the same line if no value needs quotes.
    plain: bool


@lru_cache(maxsize=1_000)  # events are constants in the code
def _format(text: str) -> _Format | None:
    """Parse a format string. Returns None if it has no pairs."""
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
    return datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info and record.exc_info[1] is not None:
        parts.append("".join(traceback.format_exception(record.exc_info[1])).rstrip())
    elif record.exc_text:
        parts.append(record.exc_text)
    # The worker passes its children's tracebacks and stacks in `extra={"stacks": …}`.
    parts += [text for text in (record.stack_info, getattr(record, "stacks", "")) if text]
    return "\n".join(parts)


class LineFormatter(logging.Formatter, ABC):
    """Formats each record as one line, with an event and pairs."""

    def format(self, record: logging.LogRecord) -> str:
        return self._line(record.created, record.levelname, record.name, *fields(record), _trace(record))

    def line(self, created: float, level: int, logger: str, text: str, args: tuple[Any, ...]) -> str:
        """Return the line of one of Palermo's records, from its values."""
        return self._line(created, logging.getLevelName(level), logger, *_split(text, args), "")

    @abstractmethod
    def _line(self, created: float, level: str, logger: str, event: str, tail: dict[str, Any], trace: str) -> str:
        """Return the line of a record, from its parts."""


class JsonFormatter(LineFormatter):
    """Formats each record as one JSON object: time, level, logger, event, and the pairs."""

    def _line(self, created: float, level: str, logger: str, event: str, tail: dict[str, Any], trace: str) -> str:
        head = {"time": _time(created), "level": level.lower(), "logger": logger, "event": event}
        # A key in a job's `extra` must not replace one of these.
        line = head | {key: value for key, value in tail.items() if key not in head}
        if trace:
            line["traceback"] = trace
        return _to_json(line)


_to_json = json.JSONEncoder(default=str).encode


class TextFormatter(LineFormatter):
    """Formats each record as time, level, event, and key=value pairs. Further lines are indented."""

    def __init__(self, *, colours: bool = False) -> None:
        super().__init__()
        self._colours = colours

    def line(self, created: float, level: int, logger: str, text: str, args: tuple[Any, ...]) -> str:
        # Part of `log_event`'s fast path if no value needs quotes. Takes 4 µs in a loop, 8 without.
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
        # Indented so that a job's text can't be mistaken for another event.
        return f"{_time(created)} {self._level(level)} " + line.replace("\n", "\n    ")

    def _level(self, level: str) -> str:
        return f"\x1b[{_COLOURS[level]}m{level}\x1b[0m" if self._colours and level in _COLOURS else level


def _word(value: Any) -> str:
    """Return a value as one word, quoted if it contains a space or another character that would end the word."""
    text = str(value)
    return repr(text) if _NEEDS_QUOTES.search(text) else text
