"""Modules by pattern, and the border of the search for a job by its name."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.errors import JobNotFound, SettingInvalid
from palermo.jobs.modules import JobModules, expand

JOBS = "import palermo\n"

FILES = {
    "bazaar/__init__.py": "",
    "bazaar/__main__.py": JOBS,
    "bazaar/tasks.py": JOBS,
    "bazaar/drop_db.py": "raise SystemExit('dropped')\n",
    "bazaar/broken.py": "import palermo, nowhere_at_all\n",
    "bazaar/exits.py": "import palermo\nraise SystemExit(3)\n",
    "bazaar/mail/__init__.py": "",
    "bazaar/mail/tasks.py": JOBS,
    "bazaar/mail/letters.py": JOBS,
    "bazaars.py": JOBS,
    "outside.py": JOBS,
}


@pytest.fixture(autouse=True)
def bazaar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package, and modules beside it."""
    for name, source in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in imported():
        del sys.modules[name]


def imported() -> set[str]:
    """What was imported of these modules."""
    return {name for name in sys.modules if name.partition(".")[0] in ("bazaar", "bazaars", "outside")}


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["bazaar.tasks", "outside", "bazaar.tasks"], ["bazaar.tasks", "outside"]),
        (["bazaar.mail.*"], ["bazaar.mail", "bazaar.mail.letters", "bazaar.mail.tasks"]),
        (["bazaar.*.tasks"], ["bazaar.mail.tasks"]),
        (
            ["bazaar.*"],
            [
                *("bazaar", "bazaar.broken", "bazaar.drop_db", "bazaar.exits", "bazaar.mail", "bazaar.mail.letters"),
                *("bazaar.mail.tasks", "bazaar.tasks"),
            ],
        ),
        (["not.looked.for"], ["not.looked.for"]),
    ],
)
def test_a_pattern_means_the_modules_below_a_package(given: list[str], meant: list[str]) -> None:
    assert list(expand(given)) == meant
    assert imported() == set()


@pytest.mark.parametrize(
    "pattern", ["*", "*.tasks", "nowhere_at_all.*", "outside.*", "bazaar.x*", "bazaar.nowhere.*", "bazaar.[z]"]
)
def test_a_pattern_that_means_no_module_is_refused(pattern: str) -> None:
    with pytest.raises(SettingInvalid, match="module pattern"):
        expand([pattern])


@pytest.mark.parametrize(
    ("given", "job", "module"),
    [
        ("bazaar", "bazaar.tasks.sweep", "bazaar.tasks"),
        ("bazaar", "bazaar.mail.tasks.Letters.Send", "bazaar.mail.tasks"),
        ("bazaar.mail", "bazaar.mail.letters.send", "bazaar.mail.letters"),
        ("bazaar.*.tasks", "bazaar.mail.tasks.send", "bazaar.mail.tasks"),
    ],
)
def test_the_module_of_a_job_below_those_given_is_imported(given: str, job: str, module: str) -> None:
    JobModules([given]).load(job)

    packages = {module.rpartition(".")[0], "bazaar"}
    assert imported() == packages | {module}


#: Jobs that are none below the given modules.
BEYOND = {
    "bazaar": (
        *("outside.run", "bazaars.run", "antigravity.run", "bazaar.sweep", "bazaar.drop_db.run", "bazaar.__main__.run"),
        *(
            "bazaar.nowhere.run",
            "bazaar..tasks.run",
            "bazaar.tasks",
            "bazaar/tasks.run",
            "bazaar.mail/../tasks.run",
            "",
        ),
    ),
    "bazaar.mail": ("bazaar.tasks.sweep",),
    "bazaar.tasks": ("bazaar.mail.tasks.send",),
    "bazaar.*.tasks": ("bazaar.mail.letters.send", "bazaar.tasks.sweep"),
}


@pytest.mark.parametrize(("given", "job"), [(given, job) for given, jobs in BEYOND.items() for job in jobs])
def test_nothing_is_imported_beyond_the_border(given: str, job: str) -> None:
    JobModules([given]).load(job)

    assert imported() == set()
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("module", "why"), [("broken", "ModuleNotFoundError: No module named"), ("exits", "SystemExit: 3")]
)
def test_a_module_that_cannot_be_imported_fails_the_job_with_the_reason(module: str, why: str) -> None:
    with pytest.raises(JobNotFound, match=f"module 'bazaar.{module}', which may declare it, cannot be imported: {why}"):
        JobModules(["bazaar"]).load(f"bazaar.{module}.run")
