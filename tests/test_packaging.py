"""The installed package has all that is here: the list of packages, the entry points, the wheel, and the links."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Any

import pytest

import palermo
from palermo.contract import plugins

_REPOSITORY = Path(__file__).parents[1]
_PROJECT: dict[str, Any] = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())
_SETUPTOOLS: dict[str, Any] = _PROJECT["tool"]["setuptools"]
_FOLDERS: dict[str, str] = _SETUPTOOLS["package-dir"]

_BUILT_FROM = ["pyproject.toml", "README.md", "LICENSE", "palermo", *_FOLDERS.values()]


def found_packages() -> list[str]:
    """Every package that the tree holds, links followed."""
    found = []
    for folder, _, files in os.walk(_REPOSITORY / "palermo", followlinks=True):
        if "__init__.py" in files:
            found.append(".".join(Path(folder).relative_to(_REPOSITORY).parts))
    return sorted(found)


def shipped_files() -> set[str]:
    """Every file that the wheel must hold, by its name there."""
    found = set()
    for folder, inside, files in os.walk(_REPOSITORY / "palermo", followlinks=True):
        inside[:] = [name for name in inside if name != "__pycache__"]
        found |= {str((Path(folder) / name).relative_to(_REPOSITORY)) for name in files if not name.startswith(".")}
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(copied(tmp_path_factory.mktemp("built") / "source", symlinks=True))


def copied(folder: Path, *, symlinks: bool) -> Path:
    """A copy of what the wheel is built from; in the repository itself a build would leave files behind."""
    folder.mkdir()
    for name in _BUILT_FROM:
        source = _REPOSITORY / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", *([] if symlinks else _FOLDERS.values()))
            shutil.copytree(source, folder / name, symlinks=True, ignore=ignored if name == "palermo" else None)
        else:
            shutil.copy(source, folder)
    return folder


def build(folder: Path) -> Path:
    """The wheel that the usual tool builds from this folder, with the setuptools that the pins name."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(folder / "wheels"), "."],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = (folder / "wheels").iterdir()
    return wheel


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return {name for name in opened.namelist() if ".dist-info/" not in name}


def test_every_package_is_listed() -> None:
    assert sorted(_SETUPTOOLS["packages"]) == found_packages()


@pytest.mark.parametrize("package", _FOLDERS)
def test_a_package_that_lives_elsewhere_is_linked_where_it_is_imported_from(package: str) -> None:
    link = _REPOSITORY.joinpath(*package.split("."))

    assert link.is_symlink()
    assert not Path(os.readlink(link)).is_absolute()
    assert link.resolve() == (_REPOSITORY / _FOLDERS[package]).resolve()


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


def test_the_version_is_the_one_that_is_installed() -> None:
    assert palermo.__version__ == version("palermo")


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
    assert contents(wheel) == shipped_files()


def test_the_wheel_says_what_it_needs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        [metadata] = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        lines = opened.read(metadata).decode().splitlines()

    assert "Requires-Python: >=3.11" in lines
    assert "Requires-Dist: pika<1.5,>=1.3.2" in lines


def test_a_checkout_without_links_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    unlinked = build(copied(tmp_path / "source", symlinks=False))

    assert contents(unlinked) == contents(wheel)


def test_what_is_pinned_is_what_is_needed() -> None:
    lines = (_REPOSITORY / "requirements" / "constraints.txt").read_text().splitlines()
    pins = {line.partition("==")[0].lower().replace("_", "-") for line in lines if not line.startswith("#")}
    extras = _PROJECT["project"]["optional-dependencies"]
    needed = [*_PROJECT["project"]["dependencies"], *(each for extra in extras.values() for each in extra)]

    assert all(line.startswith("#") or ("==" in line and "/" not in line) for line in lines)
    for requirement in [*needed, *_PROJECT["build-system"]["requires"]]:
        name = requirement.partition(">")[0].partition("[")[0].strip().lower()
        assert name in pins, f"{name} is not pinned: run `make pins`"
