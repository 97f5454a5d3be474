"""The examples in the documents run as they stand. `make lint` checks the commands in them.

A page's examples run in one process, on the embedded broker; those of the pages in ON_RABBITMQ on RabbitMQ too. With
`PALERMO_ENDURANCE=1` all of them do.
tests/doc_pages.py says how a page hides what its examples need.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doc_pages import PAGES, ROOT, blocks
from tests.scale import chosen

pytestmark = pytest.mark.slow

#: The pages whose examples meet what RabbitMQ does otherwise than a file.
ON_RABBITMQ = [
    ROOT / "README.md",
    *(ROOT / "docs" / page for page in ("guides/events.md", "guides/unique.md", "learn/workflows.md")),
]

#: Guides whose examples are files of a project, or tests: tests/contrib/test_guides.py runs them.
ELSEWHERE = [
    ROOT / "docs/guides" / f"{name}.md" for name in ("django", "fastapi", "flask", "sentry", "sqlalchemy", "testing")
]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def with_examples() -> list[Path]:
    pages = [page for page in PAGES if page not in ELSEWHERE]
    return [page for page in pages if any(block.language == "python" or block.is_run for block in blocks(page))]


def run_examples(page: Path, folder: Path, **environment: str) -> tuple[int, int]:
    """Run the examples of a page in an empty folder. Returns how many blocks of Python and of shell ran."""
    # Bytecode is written: without it each process compiles all of Palermo.
    without = ("PALERMO_", "PYTHONDONTWRITEBYTECODE")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(without)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.doc_examples", name(page)],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{name(page)}:\n{done.stdout}\n{done.stderr}"
    python, shell = done.stdout.splitlines()[-1].split()
    return int(python), int(shell)


@pytest.mark.parametrize("page", with_examples(), ids=name)
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    ran = run_examples(page, tmp_path, PALERMO_URL="sqlite:///jobs.db")

    assert ran[0] == sum(block.language == "python" for block in blocks(page))


@pytest.mark.parametrize(
    "page", chosen(ON_RABBITMQ, *(page for page in with_examples() if page not in ON_RABBITMQ)), ids=name
)
def test_the_examples_of_a_page_run_on_rabbitmq(page: Path, tmp_path: Path, rabbitmq_url: str, exchange: str) -> None:
    run_examples(page, tmp_path, PALERMO_URL=rabbitmq_url, PALERMO_EXCHANGE=exchange)
