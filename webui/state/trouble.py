"""The broker's current problem, for the banner on each page."""

from msgspec import Struct

from palermo.inspector.rates import Snapshot
from palermo.webui import tuning

#: Seconds after which a sample without an answer means that the broker is silent. The first one may take ten.
_SILENT = tuning.RECENT + tuning.LONG_WAIT


class SeenTrouble(Struct, frozen=True):
    """The content of the banner."""

    #: A sentence without its full stop, and advice.
    cause: str
    advice: str
    #: Whether the broker doesn't answer, so that pages show the last known state.
    away: bool

    @classmethod
    def of_error(cls, error: str) -> "SeenTrouble":
        """The trouble in an error of the broker."""
        advice = "No job is lost. Workers continue automatically once it is available again."
        return cls(error.removeprefix("BrokerUnavailable: ").rstrip("."), advice, away=True)

    @classmethod
    def of_sample(cls, error: str, silent: float, last: Snapshot | None) -> "SeenTrouble | None":
        """Return the trouble from the last sample's error, the seconds that a sample has been in progress, and the last
        snapshot.
        """
        if error:
            return cls.of_error(error)
        if silent > _SILENT:
            return cls.of_error(f"The broker has not answered for {silent:.0f} s")
        trouble = None if last is None else last.trouble
        return None if trouble is None else cls(trouble.cause, trouble.advice, away=False)
