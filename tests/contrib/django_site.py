"""The Django project of the examples, in this process: its settings, and a database of the process's own."""

import atexit
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
PROJECT = EXAMPLES / "django_shop"


@cache
def set_up() -> Path:
    """Set Django up, once in a process; returns an empty database with all tables, to be copied.

    The hooks of the app are added for each test by `add_hooks`.
    """
    folder = tempfile.TemporaryDirectory(prefix="django_shop-")
    atexit.register(folder.cleanup)
    os.environ["SHOP_DATA"] = folder.name
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.contrib.django_settings"
    sys.path.append(str(PROJECT))
    try:
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        return shutil.copy(Path(folder.name, "shop.db"), Path(folder.name, "empty.db"))
    finally:
        del os.environ["SHOP_DATA"], os.environ["DJANGO_SETTINGS_MODULE"]


def add_hooks() -> None:
    """What the app does as Django starts, again: each test of this folder begins without hooks."""
    from django.apps import apps

    apps.get_app_config("palermo").ready()


def clear() -> None:
    """Empty the tables."""
    from django.core.management import call_command

    call_command("flush", verbosity=0, interactive=False)
