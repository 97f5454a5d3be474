"""A type checker sees the job's own parameters on `enqueue`, and finds nothing wrong in the code of the documents."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import palermo
from palermo.contract.recurring import MISSED
from palermo.core.backoff import NAMED_BACKOFFS
from palermo.core.unique_keys import Mode
from palermo.core.unique_rules import ON_DUPLICATE
from palermo.jobs import options
from tests.doc_pages import PAGES
from tests.typed_examples import Example, examples, folder_name

# Each type checker reads all in one run, which takes minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

REPOSITORY = Path(__file__).parents[2]
TYPED = REPOSITORY / "tests" / "jobs" / "typed"

#: For each file the lines in which a type checker finds an error, and what is wrong with each.
Found = dict[Path, dict[int, str]]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Example]:
    """The code of the documents as files, those of a page in one folder; Django has no types, so it is not there.

    Beside them, in `typed`, are the programs of tests/jobs/typed: a run of a type checker takes long, and reads all.
    """
    folder = tmp_path_factory.mktemp("documents")
    files: dict[Path, Example] = {}
    for example in (example for page in PAGES if page.stem != "django" for example in examples(page)):
        path = folder / folder_name(example.page) / example.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example.text)
        files[path] = example
    assert len(files) > 40
    (folder / "typed").mkdir()
    for sample in TYPED.glob("*.py"):
        (folder / "typed" / sample.name).write_text(f"{sample.read_text()}# pyright: strict\n")
    return files


@pytest.fixture(scope="module")
def folder(documents: dict[Path, Example]) -> Path:
    return Path(os.path.commonpath(documents))


@pytest.fixture(scope="module")
def by_pyright(folder: Path) -> Found:
    """A name may be declared twice: the examples of a page are one module here, and not for its reader."""
    known = {"include": ["."], "extraPaths": [str(REPOSITORY)], "pythonVersion": "3.11"}
    settings = {**known, "typeCheckingMode": "standard", "reportRedeclaration": False}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "--project", "."]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(folder.rglob("*.py")))
    found: Found = {}
    for each in report["generalDiagnostics"]:
        if each["severity"] == "error":
            line = each["range"]["start"]["line"] + 1
            found.setdefault(Path(each["file"]), {})[line] = f"{each['message']} ({each.get('rule')})"
    return found


def mypy(folder: Path, config: str, *arguments: str) -> Found:
    (folder / "mypy.ini").write_text(f"[mypy]\nstrict = True\npython_version = 3.11\n{config}")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", *arguments]
    environment = {**os.environ, "MYPYPATH": f"{folder}:{REPOSITORY}"}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    found: Found = {}
    for file, line, text in re.findall(r"^([^/\n][^:\n]*):(\d+): error: (.*)$", run.stdout, re.MULTILINE):
        found.setdefault(folder / file, {})[int(line)] = text
    assert f"checked {len(list(folder.rglob('*.py')))} source files" in run.stdout or arguments != (".",), run.stdout
    return found


@pytest.fixture(scope="module")
def by_mypy(folder: Path) -> Found:
    """Strictly, but for readers' own functions, which need not say their types; nor are files of a page imported."""
    pages = sorted(f"{each.name}.*" for each in folder.iterdir() if each.is_dir() and each.name != "typed")
    relaxed = ("allow_untyped_defs", "allow_incomplete_defs", "allow_untyped_calls", "allow_untyped_decorators")
    return mypy(
        folder,
        "plugins = palermo.mypy_plugin\nnamespace_packages = True\nexplicit_package_bases = True\n"
        + f"[mypy-{','.join(pages)}]\n"
        + "".join(f"{name} = True\n" for name in relaxed)
        + "disable_error_code = import-not-found, import-untyped, no-redef\n",
        ".",
    )


def wrong_lines(sample: str) -> set[int]:
    """The lines of a sample that say that they are wrong."""
    lines = (TYPED / sample).read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def shown_errors(documents: dict[Path, Example], found: Found) -> list[str]:
    """What is wrong in lines that a reader sees, each with its place in its document."""
    return [
        f"{documents[path].page}:{line}: {text}"
        for path, lines in found.items()
        for line, text in lines.items()
        if path in documents and line in documents[path].shown
    ]


def test_pyright_at_its_strictest_takes_the_program_of_a_user(by_pyright: Found, folder: Path) -> None:
    found = by_pyright[folder / "typed" / "user_code.py"]

    assert {line: text for line, text in found.items() if line not in wrong_lines("user_code.py")} == {}
    assert set(found) == wrong_lines("user_code.py")


def test_mypy_at_its_strictest_takes_the_program_of_a_user(tmp_path: Path) -> None:
    (tmp_path / "user_code.py").write_text((TYPED / "user_code.py").read_text())

    found = mypy(tmp_path, "", "user_code.py")

    assert set(found[tmp_path / "user_code.py"]) == wrong_lines("user_code.py")


def test_mypy_sees_the_parameters_of_classes_by_its_plugin(by_mypy: Found, folder: Path) -> None:
    assert set(by_mypy[folder / "typed" / "sample.py"]) == wrong_lines("sample.py")


def test_pyright_finds_nothing_wrong_in_the_documents(documents: dict[Path, Example], by_pyright: Found) -> None:
    assert shown_errors(documents, by_pyright) == []


def test_mypy_finds_nothing_wrong_in_the_code_of_the_documents(documents: dict[Path, Example], by_mypy: Found) -> None:
    assert shown_errors(documents, by_mypy) == []


def test_the_words_of_options_in_the_types_are_those_that_are_accepted() -> None:
    assert get_args(options.OnDuplicate) == ON_DUPLICATE
    assert set(get_args(options.Unique)) == {Mode.START, Mode.DONE}
    assert set(get_args(options.BackoffName)) == set(NAMED_BACKOFFS)
    assert set(get_args(options.Missed)) == set(MISSED)


def test_dir_shows_what_users_may_use_and_nothing_else() -> None:
    assert [name for name in dir(palermo) if not name.startswith("__")] == sorted(palermo.__all__)
    assert "__version__" in dir(palermo)
    assert all(getattr(palermo, name) is not None for name in palermo.__all__)
    with pytest.raises(AttributeError, match="module 'palermo' has no attribute 'nothing'"):
        palermo.nothing  # noqa: B018
