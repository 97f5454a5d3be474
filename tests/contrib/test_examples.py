"""The example projects, each with its own tests, in a process of its own as their readers run them."""

import os
from pathlib import Path

import pytest

from tests.contrib.conftest import output_of

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
    environment |= {"SHOP_DATA": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    assert passed in output_of(command, EXAMPLES / project, environment)
