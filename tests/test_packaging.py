"""What is installed is what is here: the list of packages, the entry points, the wheel, and the links."""

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

from palermo import plugins

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
    assert callable(point.load())


@pytest.mark.parametrize("group", ["palermo.brokers", "palermo.serializers", "palermo.compressions"])
def test_what_plugs_in_is_found_as_the_standard_library_finds_it(group: str) -> None:
    found = plugins.installed(group)

    assert sorted(found) == sorted((point.name, point.value) for point in entry_points(group=group))
    assert all(callable(each.load()) for each in found)
    assert (plugins.version(), plugins.installed("palermo.nothing")) == (version("palermo"), ())


def test_what_plugs_in_is_found_in_folders_once_and_in_archives(tmp_path: Path) -> None:
    text = "[console_scripts]\nx = a:b\n\n[palermo.brokers]\n# ours\nnats = nats_for_palermo:open_nats [tls]\n"
    for folder in ("Nats.For_Palermo-1.0.dist-info", "later/nats.for_palermo-0.9.dist-info"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "entry_points.txt").write_text(text)
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.writestr("kafka_for_palermo-1.0.dist-info/entry_points.txt", "[palermo.brokers]\nkafka = k:open\n")
        archive.writestr("kafka_for_palermo-1.0.dist-info/METADATA", "Name: kafka-for-palermo\nVersion: 1.0\n")
    program = (
        "import palermo.plugins as p; print(*(f'{name}={value}' for name, value in p.installed('palermo.brokers')))"
    )

    def found(*places: Path) -> list[str]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (*places, _REPOSITORY)))}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    assert found(tmp_path, tmp_path / "later").count("nats=nats_for_palermo:open_nats") == 1
    assert "kafka=k:open" in found(tmp_path / "more.zip")


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
