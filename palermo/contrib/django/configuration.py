"""A Django project's `settings.PALERMO`: Palermo's settings and the three settings of this integration."""

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from msgspec import Struct

from palermo.core.text import nearest
from palermo.errors import SettingInvalid
from palermo.settings.settings import declare_settings
from palermo.settings.table import SETTINGS

SOURCE = "settings.PALERMO"


class Configuration(Struct, frozen=True, kw_only=True):
    """The settings of this integration in settings.PALERMO."""

    #: The modules in which installed apps declare jobs.
    autodiscover: tuple[str, ...] = ("jobs", "tasks")
    #: Whether model instances are allowed as arguments of jobs.
    model_arguments: bool = False
    #: The role of staff on the web pages. Superusers are always administrators.
    staff_role: str = "viewer"


_OWN = Configuration.__struct_fields__


def configuration() -> Configuration:
    """Return this integration's settings. Raises SettingInvalid for an unknown staff_role."""
    given = {name: value for name, value in _given().items() if name in _OWN}
    if "autodiscover" in given:
        given["autodiscover"] = tuple(given["autodiscover"])
    found = Configuration(**given)
    if found.staff_role not in ("viewer", "operator", "admin"):
        raise SettingInvalid(f"staff_role in {SOURCE} is {found.staff_role!r}; it must be viewer, operator or admin.")
    return found


def declare() -> None:
    """Apply Palermo's settings in settings.PALERMO to this process."""
    declare_settings(SOURCE, {name: value for name, value in _given().items() if name not in _OWN})


def check() -> None:
    """Raise SettingInvalid for an invalid name or value in settings.PALERMO."""
    from palermo.settings.settings import Settings

    known = (*SETTINGS, *_OWN)
    for name in _given():
        if name not in known:
            raise SettingInvalid(f"setting {name!r} in {SOURCE} is unknown.{nearest(name.lower(), known)}")
    configuration()
    Settings.load()


def _given() -> Mapping[str, Any]:
    found = getattr(settings, "PALERMO", {})
    if not isinstance(found, Mapping):
        raise SettingInvalid(f'{SOURCE} is {found!r}; it must be a dict, such as {{"url": "amqp://…"}}.')
    return found
