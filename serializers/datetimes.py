"""Dates with a time, and times of day, as text that keeps the time zone's name and the second hour of a clock change.

``2026-10-25T02:30:00+01:00[Europe/Rome][fold=1]`` is RFC 9557: ISO 8601 with suffixes. Programs in
other languages may cut the suffixes off and still have the right instant.
"""

from datetime import datetime, time, timezone, tzinfo


def write(value: datetime | time) -> str:
    """The value in ISO 8601, with the time zone's name behind it as in RFC 9557, and [fold=1] where fold is set.

    Raises ValueError for a time zone that cannot be named.
    """
    text = value.isoformat()
    zone = value.tzinfo
    if zone is not None and type(zone) is not timezone:
        key = getattr(zone, "key", None)
        if key is None or type(zone).__module__.partition(".")[0] not in ("zoneinfo", "_zoneinfo"):
            raise ValueError(
                f"has a time zone of {type(zone).__module__}.{type(zone).__qualname__}, which would be lost; "
                "use datetime.timezone or zoneinfo.ZoneInfo."
            )
        text += f"[{key}]"
    return f"{text}[fold=1]" if value.fold else text


def read_datetime(text: str) -> datetime:
    instant, zone, fold = _parts(text)
    value = datetime.fromisoformat(instant)
    if zone is None:
        return value.replace(fold=fold)
    named = value.replace(tzinfo=zone, fold=fold)
    # Another release of the zone's rules may disagree here; then the instant counts, not the wall clock.
    return named if named.utcoffset() == value.utcoffset() else value.astimezone(zone)


def read_time(text: str) -> time:
    instant, zone, fold = _parts(text)
    value = time.fromisoformat(instant)
    return value.replace(tzinfo=zone or value.tzinfo, fold=fold)


def _parts(text: str) -> tuple[str, tzinfo | None, int]:
    instant, *suffixes = text.replace("]", "").split("[")
    zone: tzinfo | None = None
    for suffix in suffixes:
        if "=" not in suffix:
            from zoneinfo import ZoneInfo  # seldom needed

            zone = ZoneInfo(suffix)
    return instant, zone, int("fold=1" in suffixes)
