"""How much the longest tests do: what finds a fault in seconds, or with `make endurance` all that was promised."""

import os

#: Whether all is asked for.
FULL = os.environ.get("PALERMO_ENDURANCE") == "1"


def scaled(usual: int, full: int) -> int:
    """The number to do in this run."""
    return full if FULL else usual
