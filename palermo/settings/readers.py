"""Readers of the settings: each checks and converts a value from TOML, from a variable's text, or from Python."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from palermo.core.address import parse_url
from palermo.core.fair_scheduling import TENANT_ORDERS
from palermo.core.journal_records import JournalLevel
from palermo.core.lifecycle import MAX_RESULT
from palermo.core.times import in_seconds, parse_duration
from palermo.core.topology import QUEUE_TYPES, check_exchange_name, check_new_queue, check_queue_name
from palermo.errors import SettingInvalid, UsageError

_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class WrongValue(Exception):
    """Raised for a wrong value; its text is what the value must be instead."""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise WrongValue("text")
    return value


def _named(value: Any) -> str:
    if not _text(value).strip():
        raise WrongValue("a name")
    return str(value).strip()


def _url(value: Any) -> str:
    parse_url(_text(value))
    return str(value)


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in _TRUTH:
        return _TRUTH[value.strip().lower()]
    raise WrongValue("true or false")


def _one_of(choices: Sequence[str]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise WrongValue(f"{', '.join(choices[:-1])} or {choices[-1]}")
        return str(value)

    return read


def _events_prefix(value: Any) -> str:
    return "" if value in ("", "none") else check_queue_name(_text(value))


def _size(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        try:
            number = _count(value)
        except WrongValue:
            number = -1
        if not least <= number <= most:
            raise WrongValue(f"a number of bytes, {least} to {most}")
        return number

    return read


def _compression(value: Any) -> str:
    name = _text(value).strip()
    return "" if name == "none" else name


def _list(value: Any) -> tuple[str, ...]:
    parts = value
    if isinstance(value, str):
        try:
            parts = json.loads(value) if value.lstrip().startswith("[") else value.split(",")
        except ValueError:
            parts = None
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise WrongValue("a list of texts")
    return tuple(part.strip() for part in parts if part.strip())


def _seconds(value: Any) -> float:
    try:
        seconds = parse_duration(value) if isinstance(value, str) else in_seconds(value)
    except ValueError:
        seconds = None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
        raise WrongValue("a duration above 0: seconds, a timedelta, or such as 5m, 1h30m, 30d")
    return float(seconds)


def _count(value: Any) -> int:
    number = int(value) if isinstance(value, str) and value.strip().isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise WrongValue("a whole number, 0 or more")
    return number


def _some(value: Any) -> int:
    if (number := _count(value)) < 1:
        raise WrongValue("a whole number, 1 or more, or none")
    return number


def _port(value: Any) -> int:
    try:
        number = _count(value)
    except WrongValue:
        number = 65_536
    if number > 65_535:
        raise WrongValue("a port, 0 to 65535")
    return number


def _path(value: Any) -> str:
    return "" if _text(value) == "none" else str(value)


def _prefix(value: Any) -> str:
    prefix = _path(value).rstrip("/")
    if prefix and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)+", prefix):
        raise WrongValue("the beginning of a path, such as /palermo")
    return prefix


def _web_address(value: Any) -> str:
    address = _path(value)
    if address and not re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", address):
        raise WrongValue("an address, such as https://login.example.com")
    return address


def _secret(value: Any) -> str:
    secret = _path(value)
    if secret and len(secret) < 16:
        raise WrongValue("text of at least 16 characters")
    return secret


#: The keys of a table of the schedule, and their types; `every` may be text such as 5m, or a timedelta, as well.
_SCHEDULED: Mapping[str, tuple[type, ...]] = {
    "job": (str,),
    "cron": (str,),
    "every": (int, float, str, timedelta),
    "tz": (str,),
    "missed": (str,),
    "queue": (str,),
    "args": (list, tuple),
    "kwargs": (dict,),
}


def _schedule(value: Any) -> dict[str, dict[str, Any]]:
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
    for key, value in table.items():
        if key not in _SCHEDULED:
            raise SettingInvalid(f"{name!r} has an unknown key {key!r}. It may hold {', '.join(_SCHEDULED)}.")
        if not isinstance(value, _SCHEDULED[key]) or isinstance(value, bool):
            kinds = " or ".join(kind.__name__ for kind in _SCHEDULED[key])
            raise SettingInvalid(f"{name!r} has {key} = {value!r}, which must be {kinds}.")
    if "job" not in table:
        raise SettingInvalid(f'{name!r} names no job. Write job = "shop.tasks.sweep".')
    every = table.get("every")
    return {**table, "every": _seconds(every)} if isinstance(every, str | timedelta) else dict(table)


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None or value == "none" else read(value)


#: Every setting, and the function that reads a value for it: from TOML, from a variable's text, or from Python.
READERS: Mapping[str, Callable[[Any], Any]] = {
    "url": _url,
    "exchange": check_exchange_name,
    "queue_type": _one_of(QUEUE_TYPES),
    "tenant_order": _one_of(TENANT_ORDERS),
    "default_queue": check_new_queue,
    "serializer": _named,
    "compression": _compression,
    "sign": _truth,
    "signing_keys": _list,
    "publish_timeout": _seconds,
    "imports": _list,
    "schedule": _schedule,
    "failed_per_queue": _truth,
    "failed_max_age": _optional(_seconds),
    "failed_max_count": _optional(_count),
    "max_deaths": _optional(_some),
    "journal": _one_of([level.value for level in JournalLevel]),
    "journal_arguments": _size(0, 65_536),
    "journal_max_size": _size(1_000_000, 2**62),
    "journal_max_age": _seconds,
    "events_prefix": _events_prefix,
    "events_unsubscribed": _one_of(("keep", "refuse")),
    "events_max_age": _seconds,
    "events_max_size": _size(1_000_000, 2**62),
    "max_result": _size(0, MAX_RESULT),
    "release": _path,
    "metrics_host": _named,
    "metrics_port": _optional(_port),
    "metrics_token": _secret,
    "web_host": _named,
    "web_port": _port,
    "web_hosts": _list,
    "web_users": _path,
    "web_oidc_issuer": _web_address,
    "web_oidc_client_id": _path,
    "web_oidc_client_secret": _path,
    "web_oidc_scopes": _list,
    "web_oidc_claim": _named,
    "web_oidc_roles": _list,
    "web_session": _seconds,
    "web_token": _truth,
    "web_read_only": _truth,
    "web_prefix": _prefix,
    "web_trust_proxy": _truth,
    "web_redact": _list,
    "web_secret": _secret,
}
