"""The parts of a soak that can be switched, each to be tried alone, and left out while another is looked into."""

import os
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

ALL = frozenset({TENANTS, DELAYED, UNIQUE, RECURRING, FOREIGN, HOSTILE, REFUSALS, REMADE, EXCLUSIVE, MALFORMED})


def chosen(names: str) -> frozenset[str]:
    """The parts that a text like "tenants,unique" names; "-hostile" is all but that one, "" is all, "none" is none."""
    words = [word.strip() for word in names.split(",") if word.strip()]
    if words == ["none"]:
        return frozenset()
    without = _known(word[1:] for word in words if word.startswith("-"))
    return (_known(word for word in words if not word.startswith("-")) or ALL) - without


def _known(names: Iterable[str]) -> frozenset[str]:
    found = frozenset(names)
    assert found <= ALL, f"no such part of the soak: {', '.join(found - ALL)}. There are {', '.join(sorted(ALL))}."
    return found


PARTS = chosen(os.environ.get("PALERMO_SOAK_PARTS", ""))
