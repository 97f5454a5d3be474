"""Statistics as rows, which `palermo stats --json` prints and the API returns. Their fields are a contract."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from palermo.contract.rows import Row, iso_instant
from palermo.core.failure import printable
from palermo.history.statistics import Named, Report
from palermo.history.tally import Tally

#: The fields of a queue that only the journal knows, and of a worker that has ended.
_NO_QUEUE = {"pending": 0, "in_progress": 0, "workers": 0, "paused": False}
_NO_WORKER = {"state": None, "started_at": None, "slots": None}


def report_row(report: Report, queues: Iterable[Row], workers: Iterable[Row]) -> Row:
    """A report as a row, with the queues and workers that exist now and what each did; the busiest first.

    Names that were counted together have the name (for workers the id) null. `known_since` is the
    instant of the oldest record of that time in the journal, null for none.
    """
    alive = {row["name"]: {name: row[name] for name in _NO_QUEUE} for row in queues}
    up = {row["id"]: {name: row[name] for name in _NO_WORKER} for row in workers}
    return {
        "since": iso_instant(report.since),
        "until": iso_instant(report.until),
        "known_since": iso_instant(report.known) if report.known < report.until else None,
        "rate": rate(report),
        **report.total.row(),
        "lost": report.lost,
        "queues": list(_parts(report.parts.get("queue", ()), alive, _NO_QUEUE, "name")),
        "jobs": list(_parts(report.parts.get("job", ()), {}, {}, "name")),
        "workers": list(_parts(report.parts.get("worker", ()), up, _NO_WORKER, "id")),
        "deploys": [{"at": iso_instant(deploy.at), "release": printable(deploy.release)} for deploy in report.deploys],
        "series": [
            {"at": iso_instant(cell.start), "seconds": cell.seconds, **cell.tally.row()} for cell in report.cells
        ],
    }


def rate(report: Report, tally: Tally | None = None) -> float | None:
    """Jobs processed a second over the time that is known; None if that is less than a second."""
    seconds = report.until - report.known
    processed = (report.total if tally is None else tally).processed
    return round(processed / seconds, 3) if seconds >= 1 else None


def _parts(found: Sequence[Named], alive: Mapping[str, Row], absent: Row, key: str) -> Iterable[Row]:
    """The names that were counted, with their present state; then the present names that did nothing."""
    nothing: dict[str, Any] = Tally().row()
    counted = set()
    for each in found:
        name = None if each.name is None else printable(each.name)
        counted.add(name)
        yield {key: name, **alive.get(name or "", absent), **each.tally.row()}
    for name in sorted(alive.keys() - counted):
        yield {key: name, **alive[name], **nothing}
