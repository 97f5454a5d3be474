"""The parts of a soak: kinds of jobs and faults that can be left out or run alone."""

from collections.abc import Iterable

#: Kinds of jobs: of tenants, delayed, with keys, recurring, from another program, and hostile.
TENANTS, DELAYED, UNIQUE, RECURRING, FOREIGN, HOSTILE = (
    "tenants",
    "delayed",
    "unique",
    "recurring",
    "foreign",
    "hostile",
)
#: Kinds of faults: queues that refuse messages, a quorum queue that is deleted and recreated, a queue that another
#: program consumes exclusively, and malformed records in Palermo's own streams and queues.
REFUSALS, REMADE, EXCLUSIVE, MALFORMED = "refusals", "remade", "exclusive", "malformed"

#: Runs only if named: storm.py, on brokers of its own.
WORKFLOWS = "workflows"

ALL = frozenset({TENANTS, DELAYED, UNIQUE, RECURRING, FOREIGN, HOSTILE, REFUSALS, REMADE, EXCLUSIVE, MALFORMED})


def chosen(names: str) -> frozenset[str]:
    """Parse the names of parts, such as "tenants,unique". "-hostile" means all but that one, "" all, and "none" none.

    Raises ValueError.
    """
    words = [word.strip() for word in names.split(",") if word.strip()]
    if words == ["none"]:
        return frozenset()
    without = _known(word[1:] for word in words if word.startswith("-"))
    return (_known(word for word in words if not word.startswith("-")) or ALL) - without


def _known(names: Iterable[str]) -> frozenset[str]:
    found = frozenset(names)
    known = ALL | {WORKFLOWS}
    if not found <= known:
        raise ValueError(f"no such part: {', '.join(sorted(found - known))}. The parts are {', '.join(sorted(known))}.")
    return found
