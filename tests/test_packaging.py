"""The installed package has all that is here: the entry points, and the wheel with every package and linked folder.

`make release-check` builds what a release consists of, and tries that in empty environments.
"""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from importlib.metadata import EntryPoint, distribution, entry_points
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from palermo.contract import plugins

pytestmark = pytest.mark.slow

_REPOSITORY = Path(__file__).parents[1]
_PROJECT: dict[str, Any] = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())
_SETUPTOOLS: dict[str, Any] = _PROJECT["tool"]["setuptools"]
_FOLDERS: dict[str, str] = _SETUPTOOLS["package-dir"]

_BUILT_FROM = ["pyproject.toml", "README.md", "LICENSE", "palermo", *_FOLDERS.values()]


def shipped_files() -> set[str]:
    """Every file that the wheel must hold, by its name there."""
    found = set()
    for folder, inside, files in os.walk(_REPOSITORY / "palermo", followlinks=True):
        inside[:] = [name for name in inside if name != "__pycache__"]
        found |= {str((Path(folder) / name).relative_to(_REPOSITORY)) for name in files if not name.startswith(".")}
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the usual tool builds, of a copy: in the repository itself a build would leave files behind."""
    folder = tmp_path_factory.mktemp("source")
    for name in _BUILT_FROM:
        source = _REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "--wheel-dir", "wheels", "."], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = (folder / "wheels").iterdir()
    return wheel


def needed_distributions(requirements: Iterable[str]) -> set[str]:
    """The names of the installed distributions that these requirements need, and those that these need."""
    found: set[str] = set()
    left = [(Requirement(each), {""}) for each in requirements]
    while left:
        requirement, extras = left.pop()
        marker = requirement.marker
        if requirement.name in found or (marker and not any(marker.evaluate({"extra": each}) for each in extras)):
            continue
        if requirement.name == "palermo":
            own = _PROJECT["project"]["optional-dependencies"]
            left += [(Requirement(each), {""}) for extra in requirement.extras for each in own[extra]]
            continue
        found.add(requirement.name)
        left += [
            (Requirement(each), requirement.extras | {""}) for each in distribution(requirement.name).requires or ()
        ]
    return found


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a virtual environment that has what `pip install palermo` installs, and nothing else."""
    folder = tmp_path_factory.mktemp("light")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    done = subprocess.run([*command, "--no-warn-script-location"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [packages] = folder.glob("lib/python*/site-packages")
    link(needed_distributions(_PROJECT["project"]["dependencies"]), packages)
    return folder / "bin"


def link(names: Iterable[str], packages: Path) -> None:
    """Link what these distributions installed here into another folder of packages."""
    for name in names:
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (packages / top).exists():
                (packages / top).symlink_to(distribution(name).locate_file(top))


def run(*command: object, folder: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a program that sees no settings and no packages but its own."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PALERMO_", "PYTHON"))}
    environment = {**clean, "PALERMO_URL": f"sqlite:///{folder}/jobs.db", **variables}
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)


def declared_entry_points() -> list[EntryPoint]:
    groups: dict[str, dict[str, str]] = {"console_scripts": _PROJECT["project"]["scripts"]}
    groups |= _PROJECT["project"]["entry-points"]
    return [EntryPoint(name, value, group) for group, points in groups.items() for name, value in points.items()]


@pytest.mark.parametrize("point", declared_entry_points(), ids=str)
def test_every_entry_point_is_installed_and_loads(point: EntryPoint) -> None:
    installed = entry_points(group=point.group, name=point.name)

    assert point.value in [each.value for each in installed], "installed from other sources: run `make test`"
    loaded = point.load()
    assert callable(loaded) or point.group == "pytest11"  # a plug-in of pytest is a module


@pytest.mark.parametrize("group", ["palermo.brokers", "palermo.serializers", "palermo.compressions"])
def test_what_palermo_brings_itself_is_what_its_package_says(group: str) -> None:
    said = {(point.name, point.value) for point in entry_points(group=group) if point.value.startswith("palermo.")}

    assert {(each.name, each.value) for each in plugins.own(group).values()} == said
    assert all(callable(each.load()) for each in plugins.installed(group).values())
    assert plugins.installed("palermo.nothing") == {}


def test_what_others_plug_in_is_found(tmp_path: Path) -> None:
    text = "[console_scripts]\nx = a:b\n\n[palermo.brokers]\n# ours\nnats = nats_for_palermo:open_nats [tls]\n"
    (tmp_path / "nats_for_palermo-1.0.dist-info").mkdir()
    (tmp_path / "nats_for_palermo-1.0.dist-info" / "entry_points.txt").write_text(text)
    (tmp_path / "nats_for_palermo.py").write_text("def open_nats(session): raise LookupError('nats')\n")
    program = (
        "import palermo.core.address as a, palermo.contract.broker as b\n"
        "print(b.opener(a.parse_url('nats://here')).__name__)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, _REPOSITORY)))}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)

    assert said.stdout.strip() == "open_nats"


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        assert {name for name in opened.namelist() if ".dist-info/" not in name} == shipped_files()


def test_palermo_alone_enqueues_and_works_and_says_what_the_pages_need(light: Path, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "import palermo\n"
        "@palermo.job(keep_result=True)\n"
        "def double(number):\n    return 2 * number\n"
        "if __name__ == '__main__':\n    print(double.enqueue(21).id)\n"
    )

    id = run(light / "python", "shop.py", folder=tmp_path).stdout.strip()
    worked = run(light / "palermo", "worker", "shop", "--burst", folder=tmp_path)
    waited = run(light / "palermo", "wait", id, folder=tmp_path)
    pages = run(light / "palermo", "web", "--port", "0", folder=tmp_path)

    assert worked.returncode == 0, worked.stderr
    assert "done" in waited.stdout, waited.stderr
    assert waited.stdout.rstrip().endswith("42")
    assert pages.returncode == 2
    assert pages.stderr.endswith("pip install 'palermo[web]'.\n")
    assert pages.stderr.count("\n") == 1


@pytest.mark.parametrize("extra", ["django", "fastapi", "flask", "sentry", "sqlalchemy"])
def test_an_integration_can_be_imported_with_its_extra_alone(extra: str, light: Path, tmp_path: Path) -> None:
    link(needed_distributions([f"palermo[{extra}]"]), tmp_path)

    done = run(light / "python", "-c", f"import palermo.contrib.{extra}", folder=tmp_path, PYTHONPATH=str(tmp_path))

    assert (done.returncode, done.stderr) == (0, "")


def test_palermo_alone_needs_little() -> None:
    needed = needed_distributions(_PROJECT["project"]["dependencies"])

    assert not needed & {"fastapi", "starlette", "pydantic", "uvicorn", "jinja2", "argon2-cffi", "python-multipart"}
    assert len(needed) <= 10


def test_all_is_every_extra_that_users_want() -> None:
    extras = _PROJECT["project"]["optional-dependencies"]

    assert extras["all"] == [f"palermo[{','.join(sorted(extras.keys() - {'all'}))}]"]
