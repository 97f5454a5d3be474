"""The findings of `palermo doctor`: one thing that was checked, and what to do about it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that `palermo doctor` looked at, and the result."""

    #: What was looked at, in up to three words.
    check: str
    #: ok; warning, which may be as you want it; or problem, because of which jobs are not stored, not run, or lost.
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
