"""The life of one job, from all that is kept of the journal."""

from palermo.history.audit import Audit
from palermo.history.index import Index
from palermo.rows import Row

#: Records of one job that are told, the newest.
MOST = 1_000


def life(index: Index, audit: Audit, id: str) -> list[Row]:
    """What was written down of a job, oldest first: its records and what people did to it, each with `kind` and `at`.

    In the order of their instants, since a client may store later than a worker what it did before it.
    """
    steps = [(entry.at, entry.step()) for entry in index.of(id, limit=MOST)]
    steps += [(at, {"kind": "action", **row}) for at, row in audit.of(id)]
    return [row for _, row in sorted(steps, key=lambda step: step[0])]
