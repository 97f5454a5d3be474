"""The parts of a soak: sources of jobs and kinds of faults that can be left out, or tried alone."""

from collections.abc import Iterable

#: In the mix of jobs: of tenants, delayed ones, with keys, recurring, of another program, and of one that means harm.
TENANTS, DELAYED, UNIQUE, RECURRING, FOREIGN, HOSTILE = (
    "tenants",
    "delayed",
    "unique",
    "recurring",
    "foreign",
    "hostile",
)
#: Among the faults: queues that refuse, a quorum queue that is deleted and made again, a queue that another program has
#: for itself for a while, and records that cannot be read in Palermo's own streams and queues.
REFUSALS, REMADE, EXCLUSIVE, MALFORMED = "refusals", "remade", "exclusive", "malformed"

#: A part that is named by itself: storm.py, on brokers of its own.
WORKFLOWS = "workflows"

ALL = frozenset({TENANTS, DELAYED, UNIQUE, RECURRING, FOREIGN, HOSTILE, REFUSALS, REMADE, EXCLUSIVE, MALFORMED})


def chosen(names: str) -> frozenset[str]:
    """The parts that a text like "tenants,unique" names. "-hostile" is all but that one, "" is all, "none" is none.

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
