"""Every example of the guides to the frameworks runs: a block of Python is a file, which its first line names."""

import os
import shutil
from pathlib import Path

import pytest

from tests.contrib.conftest import output_of
from tests.doc_pages import ROOT, blocks

pytestmark = pytest.mark.slow

_FLASK = """
import shop

browser = shop.create_app().test_client()
assert browser.post("/orders", data={"order": "17"}).json["job"]
assert browser.get("/ops/jobs/").location == "/login"
"""

_FASTAPI = """
import warnings

warnings.simplefilter("ignore")
from starlette.testclient import TestClient

import orders, own_lifespan, shop, star

orders.write_receipt.enqueue({"number": 17, "email": "a@example.com"})

with TestClient(shop.app, base_url="http://localhost", follow_redirects=False) as browser:
    job = browser.post("/orders/17").json()["job"]
    assert browser.get(f"/jobs/{job}").json() == {"status": "pending"}
    assert browser.get("/ops/jobs/").headers["location"] == "/login"
    assert browser.get("/ops/jobs/", cookies={"session": "ann"}).status_code == 200
with TestClient(own_lifespan.app):
    pass
with TestClient(star.app) as browser:
    assert browser.post("/orders").json()["job"]
"""

_DJANGO = """
import palermo
from orders import checkout, jobs

job = palermo.job_by_id(checkout.check_out("a@example.com", 30))
assert job.status() == "pending"
jobs.sweep_outbox()
"""

_SQLALCHEMY = """
import orders, outbox_orders, palermo

orders.Base.metadata.create_all(orders.engine)
for create_order in (orders.create_order, outbox_orders.create_order):
    assert palermo.job_by_id(create_order("a@example.com")).status() == "pending"
outbox_orders.sweep_outbox()
orders.send_receipt(1)
"""

_SENTRY = """
import every_try, jobs, palermo
from palermo.jobs import hooks

assert hooks.registered.of("around_process")
assert jobs.send_receipt.enqueue(17)
"""


def write(guide: str, folder: Path) -> None:
    """The Python files of a guide. Blocks that name the same file follow each other in it."""
    for block in blocks(ROOT / "docs" / "guides" / f"{guide}.md"):
        if block.language == "python":
            assert block.file, f"{guide}.md:{block.line}: a block does not name its file"
            path = folder / block.file
            path.parent.mkdir(exist_ok=True)
            with path.open("a") as file:
                file.write(block.code)


def run(folder: Path, *arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    # Importing the plug-ins that are installed here takes longer than the tests of a guide.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return output_of(arguments, folder, environment)


@pytest.mark.parametrize(
    ("guide", "program"),
    [("flask", _FLASK), ("fastapi", _FASTAPI), ("sqlalchemy", _SQLALCHEMY), ("sentry", _SENTRY), ("testing", "")],
)
def test_the_examples_of_a_guide_run(guide: str, program: str, tmp_path: Path) -> None:
    write(guide, tmp_path)

    run(tmp_path, "-c", program)
    tests = "".join(file.read_text() for file in tmp_path.glob("test_*.py")).count("def test_")
    if tests:
        assert f"{tests} passed" in run(tmp_path, *_PYTEST, *_WARNINGS)


def test_the_examples_of_the_guide_to_django_make_a_project(tmp_path: Path) -> None:
    run(tmp_path, "-m", "django", "startproject", "config", ".")
    example = ROOT / "examples" / "django_shop" / "orders"
    shutil.copytree(example, tmp_path / "orders", ignore=lambda folder, names: {"jobs.py", "tests.py", "views.py"})
    write("django", tmp_path)

    assert "Ran 1 test" in run(tmp_path, "manage.py", "test")
    assert "READY" in run(tmp_path, "manage.py", "shell", "-c", "import remind")
    run(tmp_path, "manage.py", "migrate", "-v0")
    run(tmp_path, "manage.py", "shell", "-c", _DJANGO)


# -- the example projects


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

    assert passed in output_of(command, ROOT / "examples" / project, environment)
