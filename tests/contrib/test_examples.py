"""The example projects, each with its own tests, in a process of its own as their readers run them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


EXAMPLES = Path(__file__).parents[2] / "examples"

#: With Palermo's plugin alone: importing all others takes longer than the tests.
_PYTEST = ("-m", "pytest", "-q", "-p", "palermo.testing.plugin", "-c", os.devnull, "--rootdir", ".")
_WARNINGS = ("-p", "no:cacheprovider", "-W", "error", "-W", "ignore:Using `httpx` with")


@pytest.mark.parametrize(
    ("project", "command", "passed"),
    [
        ("django_shop", ("-W", "error", "manage.py", "test", "-v0"), "OK"),
        ("flask_shop", (*_PYTEST, *_WARNINGS), "4 passed"),
        ("fastapi_shop", (*_PYTEST, *_WARNINGS), "4 passed"),
    ],
)
def test_the_tests_of_an_example_pass(project: str, command: tuple[str, ...], passed: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PALERMO_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=EXAMPLES / project,
        env={**environment, "SHOP_DATA": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert passed in done.stdout + done.stderr
