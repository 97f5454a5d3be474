"""What `palermo doctor` finds: one thing that was checked, and what to do about it."""

from palermo.core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a doctor looked at, and what came of it."""

    #: What was looked at, in a word or three.
    check: str
    #: ok; warning, which may be as you want it; or problem, with which jobs are not stored, not run, or lost.
    level: str
    text: str
    #: What to do about it; "" where there is nothing to do.
    advice: str = ""

    @classmethod
    def ok(cls, check: str, text: str, advice: str = "") -> "Finding":
        return cls(check=check, level="ok", text=text, advice=advice)

    @classmethod
    def warning(cls, check: str, text: str, advice: str) -> "Finding":
        return cls(check=check, level="warning", text=text, advice=advice)

    @classmethod
    def problem(cls, check: str, text: str, advice: str) -> "Finding":
        return cls(check=check, level="problem", text=text, advice=advice)
