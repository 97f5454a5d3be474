"""The Django project of the examples, in this process: its settings, and a database of the process's own.

It is set up by the first test that asks for it: a run of other tests does not pay for it, and does not see its hooks.
"""

import atexit
import importlib
import os
import shutil
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from palermo.jobs import registry

EXAMPLES = Path(__file__).parents[2] / "examples"
PROJECT = EXAMPLES / "django_shop"

#: What tests use of Django and of the project, by its module.
_NAMES = {
    "asgiref.sync": ("async_to_sync",),
    "django.conf": ("settings",),
    "django.contrib.auth.models": ("User",),
    "django.core": ("checks",),
    "django.core.exceptions": ("ImproperlyConfigured",),
    "django.core.management": ("CommandError", "call_command"),
    "django.db": ("connections", "transaction"),
    "django.test": ("AsyncClient", "Client", "override_settings"),
    "orders.jobs": ("outbox", "send_receipt", "ship"),
    "orders.models": ("Order",),
    "palermo.contrib.django.outbox.models": ("OutboxEntry",),
    "palermo.contrib.django": ("configuration", "enqueue_on_commit", "views"),
}


def start() -> Any:
    """The names of _NAMES, in a project that is as Django starts it: with the app's hooks, and with empty tables."""
    site = _set_up()
    registry._jobs.update(site.jobs)
    importlib.import_module("django.apps").apps.get_app_config("palermo").ready()
    site.call_command("flush", verbosity=0, interactive=False)
    return site


def empty_database() -> Path:
    """A database with all tables, to be copied."""
    path: Path = _set_up().empty_database
    return path


@cache
def _set_up() -> SimpleNamespace:
    folder = tempfile.TemporaryDirectory(prefix="django_shop-")
    atexit.register(folder.cleanup)
    changed = {"SHOP_DATA": folder.name, "DJANGO_SETTINGS_MODULE": "tests.contrib.django_settings"}
    before = {name: os.environ.get(name) for name in (*changed, "TZ")}
    os.environ.update(changed)
    sys.path.append(str(PROJECT))
    known = set(registry.names())
    try:
        importlib.import_module("django").setup()
        names = {
            name: getattr(importlib.import_module(module), name, None) or importlib.import_module(f"{module}.{name}")
            for module, chosen in _NAMES.items()
            for name in chosen
        }
        names["call_command"]("migrate", verbosity=0)
        names["tasks"] = importlib.import_module("tests.contrib.django_jobs")
    finally:
        # Django also sets the time zone of the process.
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        time.tzset()
    empty = shutil.copy(Path(folder.name, "shop.db"), Path(folder.name, "empty.db"))
    jobs = {name: registry.get(name) for name in registry.names() if name not in known}
    return SimpleNamespace(**names, jobs=jobs, empty_database=Path(empty))
