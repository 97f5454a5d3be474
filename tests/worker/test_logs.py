"""A worker's log: one line per event, as text or JSON with the same keys, and the job's own lines name the job."""

import contextvars
import io
import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from palermo.jobs import current
from palermo.worker import logs
from palermo.worker.logs import JsonFormatter, TextFormatter
from tests.harness.rig import Rig


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogRecordFactory()
    yield
    root.handlers[:], root.level = before[0], before[1]
    logging.setLogRecordFactory(before[2])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def record(text: str, *args: object, name: str = "palermo.worker", level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord(name, level, __file__, 1, text, args, None)
    made.created = 1_700_000_000.25
    return made


def as_json(made: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(JsonFormatter().format(made))
    return found


def lines(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]


def test_text_and_json_have_the_same_keys() -> None:
    made = record("job %s id=%s slot=%d duration=%.3f error=%r", "failed", "1", 2, 0.12345, 'a "b"\nc')
    line = TextFormatter().format(made)

    assert line == "2023-11-14T22:13:20.250Z INFO job failed id=1 slot=2 duration=0.123 error='a \"b\"\\nc'"
    assert as_json(made) == {
        "time": "2023-11-14T22:13:20.250Z",
        "level": "info",
        "logger": "palermo.worker",
        "event": "job failed",
        "id": "1",
        "slot": 2,
        "duration": 0.123,
        "error": 'a "b"\nc',
    }
    words = TextFormatter().format(record("taken a=%s b=%s c=%s d=%s e=%s", "mail", "my mail", "", 'a"b', "a=b"))
    assert words.endswith(""" taken a=mail b='my mail' c='' d='a"b' e='a=b'""")


def test_no_text_of_a_jobs_passes_for_an_event_of_its_own() -> None:
    made = record("hello\n2026-01-01T00:00:00.000Z INFO job finished id=1\x1b[2J\r", name="shop")

    first, second = TextFormatter().format(made).splitlines()

    assert first.endswith("hello")
    assert second.startswith("    2026")
    assert "\x1b" not in second
    assert len(JsonFormatter().format(made).splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "args", "name", "event"),
    [
        ("cache hit rate=%d", (7,), "shop.cache", "cache hit rate=7"),
        ("50% done id=1", (), "palermo.worker", "50% done id=1"),
        ("wrong number id=%s of=%s", (), "palermo.worker", "wrong number id=%s of=%s"),
    ],
    ids=["of another logger", "no argument", "too few arguments"],
)
def test_what_has_no_keys_is_an_event_as_a_whole(text: str, args: tuple[object, ...], name: str, event: str) -> None:
    found = as_json(record(text, *args, name=name))

    assert found["event"] == event
    assert found.keys() == {"time", "level", "logger", "event"}


def test_an_exception_is_a_key_in_json_and_indented_in_text() -> None:
    made = record("cannot receive slot=%d", 1, level=logging.ERROR)
    try:
        raise ValueError("boom")
    except ValueError as error:
        made.exc_info = (type(error), error, error.__traceback__)

    assert as_json(made)["traceback"].endswith("ValueError: boom")
    assert TextFormatter().format(made).splitlines()[-1] == "    ValueError: boom"


def test_colours_are_for_terminals_and_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {}
    for name, stream, refused in [("file", io.StringIO(), ""), ("yes", Terminal(), ""), ("no", Terminal(), "1")]:
        monkeypatch.setenv("NO_COLOR", refused)
        logs.configure(stream=stream)
        logging.getLogger("shop").error("boom")
        shown[name] = "\x1b[31mERROR\x1b[0m" in stream.getvalue()

    assert shown == {"file": False, "yes": True, "no": False}


def test_every_record_names_the_current_job_for_any_handler() -> None:
    stream = io.StringIO()
    logs.configure(stream=io.StringIO())
    own = logging.StreamHandler(stream)
    own.setFormatter(logging.Formatter("[%(palermo_id)s %(palermo_job)s] %(message)s"))
    logging.getLogger("shop").addHandler(own)

    logging.getLogger("shop").warning("outside")

    def inside() -> None:
        current.set_current_job(current.CurrentJob(id="7", queue="mail", job="shop.send", attempt=1, worker="w"))
        logging.getLogger("shop").warning("inside")

    contextvars.copy_context().run(inside)
    logging.getLogger("shop").removeHandler(own)

    assert stream.getvalue().splitlines() == ["[ ] outside", "[7 shop.send] inside"]


EVENT = "job %s id=%s job=%s queue=%s slot=%d duration=%s"


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize(
    ("text", "args"),
    [
        (EVENT, ("finished", "", "my job", "a=b", 2, 1e-05)),
        (EVENT, ("finished", "1\n2026 INFO job finished id=2", "\x1b[2J", "'q\"", 2, True)),
        ("job received id=%s error=%r share=%.2f left=%d%%", ("7", "x", 0.5, 3)),
        ("all jobs are done", ()),
    ],
)
def test_a_line_of_each_job_is_the_same_without_a_record(
    text: str, args: tuple[object, ...], format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1_700_000_000.123)
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_123_000_000)
    log, (ordinary, cheap) = logging.getLogger("palermo.worker"), (io.StringIO(), io.StringIO())

    logs.configure(stream=ordinary, format=format)
    log.info(text, *args)
    logs.configure(stream=cheap, format=format)
    monkeypatch.setattr(log, "makeRecord", None)
    logs.log_event(log, logging.INFO, text, *args)

    assert cheap.getvalue() == ordinary.getvalue()
    assert "2023-11-14T22:13:20.123Z" in cheap.getvalue()


def test_another_handler_of_the_root_gets_the_line_of_each_job() -> None:
    seen = list[str]()

    class Watching(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    logs.configure(stream=io.StringIO())
    logging.getLogger().addHandler(Watching())

    logs.log_event(logging.getLogger("palermo.worker"), logging.INFO, EVENT, "finished", "1", "a", "b", 2, 0.5)

    assert seen == ["job finished id=1 job=a queue=b slot=2 duration=0.5"]


def test_a_log_whose_reader_is_gone_stops_nobody() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    logs.configure(stream=Gone())

    logs.log_event(logging.getLogger("palermo.worker"), logging.INFO, EVENT, "finished", "1", "a", "b", 2, 0.5)


def test_a_worker_that_logs_json_writes_nothing_else(rig: Rig) -> None:
    done, failed, logging_one = rig.enqueue("nothing"), rig.enqueue("raises", "no luck"), rig.enqueue("logs", "hello")
    retried = rig.enqueue("raises", "again", retries=1)

    found = lines(rig.burst("--log-format", "json"))

    events = {(line["event"], line.get("id")): line for line in found}
    finished, broken, own = events["job finished", done], events["job failed", failed], events["hello", logging_one]
    assert datetime.fromisoformat(finished["time"]).utcoffset() is not None
    assert (finished["level"], broken["level"]) == ("info", "error")
    assert {"job", "queue", "attempt", "slot", "duration"} <= finished.keys()
    assert (finished["job"], finished["queue"], finished["attempt"]) == ("crew.nothing", "jobs", 1)
    assert broken["error"] == "ValueError: no luck"
    assert broken["traceback"].startswith("Traceback (most recent call last):\n")
    assert "crew.py" in broken["traceback"]
    (again,) = [line for line in found if (line["event"], line.get("id")) == ("job failed", retried)]
    assert ("retry_in" in again, "ValueError: again" in again["traceback"]) == (True, True)
    assert (own["logger"], own["job"], own["customer"]) == ("shop", "crew.logs", 7)


def test_a_line_that_a_job_prints_in_parts_stays_whole(rig: Rig) -> None:
    (rig.path / "speech.py").write_text(
        "import pathlib, time, palermo\n"
        "@palermo.job\n"
        "def say(name, other):\n"
        "    print('I am', end=' ')\n"
        "    pathlib.Path(name).touch()\n"
        "    while not pathlib.Path(other).exists():\n"
        "        time.sleep(0.01)\n"
        "    print(name)\n"
    )
    rig.enqueue("speech.say", "ann", "bob")
    rig.enqueue("speech.say", "bob", "ann")

    log = rig.burst("-c", "2", modules=("speech",), PYTHONUNBUFFERED="1")

    assert {"I am ann", "I am bob"} <= set(log.splitlines())
