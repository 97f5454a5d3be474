"""Readers of settings. Each checks and converts a value from TOML, from a variable's text, or from Python."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from palermo.core.address import parse_url
from palermo.core.times import in_seconds, parse_duration
from palermo.core.topology import check_queue_name
from palermo.errors import SettingInvalid, UsageError

_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class WrongValue(Exception):
    """A wrong value. The text describes valid values."""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise WrongValue("text")
    return value


def read_name(value: Any) -> str:
    if not _text(value).strip():
        raise WrongValue("a name")
    return str(value).strip()


def read_url(value: Any) -> str:
    parse_url(_text(value))
    return str(value)


def read_truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUTH:
        return _TRUTH[value.strip().lower()]
    raise WrongValue("true or false")


def one_of(choices: Sequence[str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise WrongValue(f"{', '.join(choices[:-1])} or {choices[-1]}")
        return str(value)

    return read


def read_events_prefix(value: Any) -> str:
    return "" if value in ("", "none") else check_queue_name(_text(value))


def whole(least: int, most: float, wanted: str) -> Callable[[Any], int]:
    """Return a reader for integers within bounds. `wanted` describes valid values."""

    def read(value: Any) -> int:
        number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
        if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
            raise WrongValue(wanted)
        return number

    return read


def size(least: int, most: int) -> Callable[[Any], int]:
    return whole(least, most, f"a number of bytes, {least} to {most}")


read_count = whole(0, math.inf, "a whole number, 0 or more")
read_positive = whole(1, math.inf, "a whole number, 1 or more, or none")
read_port = whole(0, 65_535, "a port, 0 to 65535")


def read_list(value: Any) -> tuple[str, ...]:
    parts = value
    if isinstance(value, str):
        try:
            parts = json.loads(value) if value.lstrip().startswith("[") else value.split(",")
        except ValueError:
            parts = None
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise WrongValue("a list of strings")
    return tuple(part.strip() for part in parts if part.strip())


def read_seconds(value: Any) -> float:
    try:
        seconds = parse_duration(value) if isinstance(value, str) else in_seconds(value)
    except ValueError:
        seconds = None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise WrongValue("a duration above 0: seconds, a timedelta, or text such as 5m, 1h30m or 30d")
    return float(seconds)


def read_path(value: Any) -> str:
    return "" if _text(value) == "none" else str(value)


def matching(pattern: str, wanted: str) -> Callable[[Any], str]:
    """Return a reader for text that is empty or matches a pattern. `wanted` describes valid values."""

    def read(value: Any) -> str:
        text = read_path(value)
        if text and not re.fullmatch(pattern, text, re.DOTALL):
            raise WrongValue(wanted)
        return text

    return read


read_web_address = matching(r"https?://[^\s/?#]+[^\s?#]*", "an address, such as https://login.example.com")
read_secret = matching(r".{16,}", "text of at least 16 characters")
_read_path_prefix = matching(r"(/[A-Za-z0-9._~-]+)+", "a path prefix, such as /palermo")


def read_prefix(value: Any) -> str:
    return _read_path_prefix(_text(value).rstrip("/"))


def read_schedule(value: Any) -> dict[str, dict[str, Any]]:
    tables = value
    if isinstance(value, str):
        try:
            tables = {} if value == "none" else json.loads(value)
        except ValueError:
            tables = None
    if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
        raise WrongValue("a table of tables: [tool.palermo.schedule.NAME], or a JSON object of objects in a variable")
    read = {str(name): _scheduled(str(name), table) for name, table in tables.items()}
    if read:
        from palermo.contract.recurring import configured

        try:
            configured(read)
        except UsageError as error:
            raise SettingInvalid(str(error)) from None
    return read


def _scheduled(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    from palermo.contract.recurring import SCHEDULED

    for key in table:
        if key not in SCHEDULED:
            raise SettingInvalid(f"{name!r} has an unknown key {key!r}. Its keys are {', '.join(SCHEDULED)}.")
    every = table.get("every")
    return {**table, "every": read_seconds(every)} if isinstance(every, str | timedelta) else dict(table)


def optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None or value == "none" else read(value)
