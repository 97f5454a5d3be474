"""The life of one job, from all records of the journal that are kept."""

from palermo.contract.rows import Row
from palermo.history.audit import AuditLog
from palermo.history.index import Index

#: The most records of one job in its life, the newest.
MOST = 1_000


def life(index: Index, audit: AuditLog, id: str) -> list[Row]:
    """The life of a job, oldest first: its records and what people did to it, each with `kind` and `at`.

    They are in the order of their instants, since a client may store its record later than a worker, but act before it.
    """
    steps = [(entry.at, entry.step()) for entry in index.of(id, limit=MOST)]
    steps += [(at, {"kind": "action", **row}) for at, row in audit.of(id)]
    return [row for _, row in sorted(steps, key=lambda step: step[0])]
