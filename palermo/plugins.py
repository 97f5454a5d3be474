"""What is installed that plugs into Palermo, by entry points.

It is looked for once in a process: that reads a file of each package there is, and a worker would do it five times.
A worker's slots find it in their memory.
"""

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints


def installed(group: str) -> "EntryPoints":
    """What plugs in here, such as `palermo.brokers`; what is installed after the first look is not among it."""
    found: EntryPoints = _all().select(group=group)
    return found


@cache
def _all() -> Any:  # of one class before Python 3.12, of another since
    from importlib.metadata import entry_points

    return entry_points()
