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

pytestmark = pytest.mark.slow


TYPED = Path(__file__).parent / "typed"
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what mypy remembers of Palermo: apart with the plugin, and without it."""
    return tmp_path_factory.mktemp("cache")


def mypy(path: Path, config: Path, cache: Path) -> set[int]:
    """The lines of the file in which mypy finds an error."""
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(cache), str(path)]
    run = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, "MYPYPATH": str(REPOSITORY)}, capture_output=True, text=True
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    errors = [line.removeprefix(f"{path}:") for line in run.stdout.splitlines() if ": error:" in line]
    assert all(line[0].isdigit() for line in errors), run.stdout
    return {int(line.partition(":")[0]) for line in errors}


def wrong_lines(sample: Path) -> set[int]:
    """The lines of a sample that say that they are wrong."""
    return {number for number, line in enumerate(sample.read_text().splitlines(), 1) if line.endswith("# wrong")}


def pyright(folder: Path, **settings: object) -> dict[Path, dict[int, str]]:
    """What pyright finds in the Python files of this folder: for each file the lines, and what is wrong with each."""
    known = {"include": ["."], "extraPaths": [str(REPOSITORY)], "pythonVersion": "3.11", **settings}
    (folder / "pyrightconfig.json").write_text(json.dumps(known))
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "--project", "."]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] == len(list(folder.rglob("*.py")))
    found: dict[Path, dict[int, str]] = {}
    for each in report["generalDiagnostics"]:
        if each["severity"] == "error":
            line = each["range"]["start"]["line"] + 1
            found.setdefault(Path(each["file"]), {})[line] = f"{each['message']} ({each.get('rule')})"
    return found


def test_mypy_and_pyright_at_their_strictest_take_the_program_of_a_user(tmp_path: Path, cache: Path) -> None:
    sample = TYPED / "user_code.py"
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n")
    (tmp_path / "project").mkdir()
    copy = tmp_path / "project" / "user_code.py"
    copy.write_text(sample.read_text())

    found = pyright(copy.parent, typeCheckingMode="strict")

    assert mypy(sample.relative_to(REPOSITORY), tmp_path / "mypy.ini", cache / "plain") == wrong_lines(sample)
    assert {line: text for line, text in found.get(copy, {}).items() if line not in wrong_lines(sample)} == {}
    assert set(found.get(copy, {})) == wrong_lines(sample)


def test_mypy_sees_the_parameters_of_functions_and_of_classes(cache: Path) -> None:
    sample = TYPED / "sample.py"

    assert mypy(sample.relative_to(REPOSITORY), TYPED / "mypy.ini", cache / "plugin") == wrong_lines(sample)


def test_the_words_of_options_in_the_types_are_those_that_are_accepted() -> None:
    assert get_args(options.OnDuplicate) == ON_DUPLICATE
    assert set(get_args(options.Unique)) == {Mode.START, Mode.DONE}
    assert set(get_args(options.BackoffName)) == set(NAMED_BACKOFFS)
    assert set(get_args(options.Missed)) == set(MISSED)


def test_dir_shows_what_users_may_use_and_nothing_else() -> None:
    assert [name for name in dir(palermo) if not name.startswith("__")] == sorted(palermo.__all__)
    assert "__version__" in dir(palermo)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Example]:
    """The code of the documents as files, those of a page in one folder; Django has no types, so it is not there."""
    folder = tmp_path_factory.mktemp("documents")
    files: dict[Path, Example] = {}
    for example in (example for page in PAGES if page.stem != "django" for example in examples(page)):
        path = folder / folder_name(example.page) / example.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example.text)
        files[path] = example
    assert len(files) > 40
    return files


def shown_errors(documents: dict[Path, Example], found: dict[Path, dict[int, str]]) -> list[str]:
    """What is wrong in lines that a reader sees, each with its place in its document."""
    return [
        f"{documents[path].page}:{line}: {text}"
        for path, lines in found.items()
        for line, text in lines.items()
        if path in documents and line in documents[path].shown
    ]


def folder_of(documents: dict[Path, Example]) -> Path:
    return Path(os.path.commonpath(documents))


def test_pyright_finds_nothing_wrong_in_the_code_of_the_documents(documents: dict[Path, Example]) -> None:
    """A name may be declared twice: the examples of a page are one module here, and not for its reader."""
    found = pyright(folder_of(documents), typeCheckingMode="standard", reportRedeclaration=False)

    assert shown_errors(documents, found) == []


def test_mypy_finds_nothing_wrong_in_the_code_of_the_documents(
    documents: dict[Path, Example], tmp_path: Path, cache: Path
) -> None:
    """Strictly, but for readers' own functions, which need not say their types; nor are files of a page imported."""
    folder = folder_of(documents)
    relaxed = ("allow_untyped_defs", "allow_incomplete_defs", "allow_untyped_calls")
    config = tmp_path / "mypy.ini"
    config.write_text(
        (TYPED / "mypy.ini").read_text()
        + "namespace_packages = True\nexplicit_package_bases = True\n"
        + f"mypy_path = {folder}:{REPOSITORY}\n"
        + f"[mypy-{','.join(sorted(f'{each.name}.*' for each in folder.iterdir() if each.is_dir()))}]\n"
        + "".join(f"{name} = True\n" for name in (*relaxed, "allow_untyped_decorators"))
        + "disable_error_code = import-not-found, import-untyped, no-redef\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(cache / "plugin"), "."]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode in (0, 1), run.stdout + run.stderr
    found: dict[Path, dict[int, str]] = {}
    for file, line, text in re.findall(r"^([^/\n][^:\n]*):(\d+): error: (.*)$", run.stdout, re.MULTILINE):
        found.setdefault(folder / file, {})[int(line)] = text

    assert f"checked {len(documents)} source files" in run.stdout or "Success" in run.stdout, run.stdout
    assert shown_errors(documents, found) == []
