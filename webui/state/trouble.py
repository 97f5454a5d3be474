"""The broker's current trouble, as each page's banner shows it."""

from msgspec import Struct

from palermo.inspector.rates import Snapshot
from palermo.webui import tuning

#: Seconds after which a sample without an answer counts as the broker's silence: the first one may take ten.
_SILENT = tuning.RECENT + tuning.LONG_WAIT


class SeenTrouble(Struct, frozen=True):
    """What the banner says."""

    #: A sentence without its full stop, and what to do about it.
    cause: str
    advice: str
    #: Whether the broker does not answer: the pages show what was known last.
    away: bool

    @classmethod
    def of_error(cls, error: str) -> "SeenTrouble":
        """The trouble in an error of the broker."""
        advice = "Workers continue by themselves once it is back. Until then these pages show the last known values."
        return cls(error.rstrip("."), advice, away=True)

    @classmethod
    def of_sample(cls, error: str, silent: float, last: Snapshot | None) -> "SeenTrouble | None":
        """The trouble by the error of the last sample, the seconds that one is under way, and the last that came."""
        if error:
            return cls.of_error(error)
        if silent > _SILENT:
            return cls.of_error(f"The broker has not answered for {silent:.0f} s")
        trouble = None if last is None else last.trouble
        return None if trouble is None else cls(trouble.cause, trouble.advice, away=False)
