"""A missing package is named, with the extra of Palermo that installs it."""

import re
import subprocess
import sys

import pytest

_DJANGO = """
import django
from django.conf import settings

settings.configure(INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes"])
django.setup()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "missing", "says"),
    [
        ("palermo.contrib.django.urls", "jinja2", "the web pages cannot be used without jinja2, .*palermo\\[web\\]"),
        ("palermo.contrib.flask", "flask", "palermo.contrib.flask cannot be used without .*palermo\\[flask\\]"),
        ("palermo.contrib.fastapi", "fastapi", "palermo.contrib.fastapi cannot be used without .*palermo\\[fastapi\\]"),
        ("palermo.contrib.sentry", "sentry_sdk", "palermo.contrib.sentry cannot be .*palermo\\[sentry\\]"),
        ("palermo.contrib.sqlalchemy", "sqlalchemy", "palermo.contrib.sqlalchemy cannot be .*palermo\\[sqlalchemy\\]"),
        ("palermo.webui.server", "uvicorn", "`palermo web` cannot be used without uvicorn, .*palermo\\[web\\]"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(module: str, missing: str, says: str) -> None:
    program = f"import sys\nsys.modules[{missing!r}] = None\n{_DJANGO if 'django' in module else ''}import {module}\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 1
    told = done.stderr.splitlines()[-1]
    assert told.startswith("palermo.errors.UsageError: ")
    assert re.search(says, told), told
