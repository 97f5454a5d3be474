"""Statistics as rows: what `palermo stats --json` prints and the API answers. Their fields are a contract."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from palermo.core.failure import printable
from palermo.history.statistics import Named, Report
from palermo.history.tally import Tally
from palermo.rows import Row, instant

#: What a queue is that only the journal knows, and a worker that has ended.
_NO_QUEUE = {"pending": 0, "in_progress": 0, "workers": 0, "paused": False}
_NO_WORKER = {"state": None, "started_at": None, "slots": None}


def report_row(report: Report, queues: Iterable[Row], workers: Iterable[Row]) -> Row:
    """A report with what queues and workers there are now, each with what it did; the busiest first.

    What is known only together has the name (id, of workers) null. `known_since` is when the
    oldest thing that the journal tells of that time was written, null for none.
    """
    alive = {row["name"]: {name: row[name] for name in _NO_QUEUE} for row in queues}
    up = {row["id"]: {name: row[name] for name in _NO_WORKER} for row in workers}
    return {
        "since": instant(report.since),
        "until": instant(report.until),
        "known_since": instant(report.known) if report.known < report.until else None,
        "rate": rate(report),
        **report.total.row(),
        "lost": report.lost,
        "queues": list(_parts(report.parts.get("queue", ()), alive, _NO_QUEUE, "name")),
        "jobs": list(_parts(report.parts.get("job", ()), {}, {}, "name")),
        "workers": list(_parts(report.parts.get("worker", ()), up, _NO_WORKER, "id")),
        "deploys": [{"at": instant(deploy.at), "release": printable(deploy.release)} for deploy in report.deploys],
        "series": [{"at": instant(cell.start), "seconds": cell.seconds, **cell.tally.row()} for cell in report.cells],
    }


def rate(report: Report, tally: Tally | None = None) -> float | None:
    """Jobs processed a second over the time that is known; None if that is less than a second."""
    seconds = report.until - report.known
    processed = (report.total if tally is None else tally).processed
    return round(processed / seconds, 3) if seconds >= 1 else None


def _parts(found: Sequence[Named], alive: Mapping[str, Row], absent: Row, key: str) -> Iterable[Row]:
    """What was counted, with what there is now; then what there is and did nothing."""
    nothing: dict[str, Any] = Tally().row()
    counted = set()
    for each in found:
        name = None if each.name is None else printable(each.name)
        counted.add(name)
        yield {key: name, **alive.get(name or "", absent), **each.tally.row()}
    for name in sorted(alive.keys() - counted):
        yield {key: name, **alive[name], **nothing}
