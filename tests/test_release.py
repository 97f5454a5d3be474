"""The workflow that publishes a release, and the pins of what builds it, held against the Makefile and each other."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

_REPOSITORY = Path(__file__).parents[1]
_WORKFLOW = _REPOSITORY / ".github" / "workflows" / "release.yml"
_READ: dict[Any, Any] = yaml.safe_load(_WORKFLOW.read_text())
_JOBS: dict[str, dict[str, Any]] = _READ["jobs"]
_SCRIPT = (_REPOSITORY / "requirements" / "make-release").read_text()


def steps() -> list[dict[str, Any]]:
    return [step for job in _JOBS.values() for step in job["steps"]]


def test_github_would_read_the_workflow() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(_WORKFLOW)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)

    assert done.returncode == 0, done.stdout + done.stderr


def test_actions_of_others_are_named_by_their_commits() -> None:
    used = re.findall(r"uses: (.*)", _WORKFLOW.read_text())

    assert len(used) == len([step for step in steps() if "uses" in step])
    assert [each for each in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", each)] == []


def test_only_the_job_that_publishes_has_the_identity_that_the_index_trusts() -> None:
    assert _READ["permissions"] == {"contents": "read"}
    assert [name for name, job in _JOBS.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert _JOBS["publish"]["environment"]["name"] == "pypi"
    assert "secrets." not in _WORKFLOW.read_text()


def test_nothing_is_published_that_was_not_built_and_tried() -> None:
    assert _JOBS["publish"]["needs"] == "build"
    assert _JOBS["page"]["needs"] == "publish"
    assert [step["run"] for step in _JOBS["build"]["steps"] if "run" in step] == [
        'make release-check TAG="$GITHUB_REF_NAME"'
    ]
    assert re.search(r"^release-check:", (_REPOSITORY / "Makefile").read_text(), re.MULTILINE)


def test_what_is_published_is_what_is_made() -> None:
    (publish,) = [step for step in steps() if "pypi-publish" in step.get("uses", "")]
    folders = {step["with"]["path"] for step in steps() if "-artifact@" in step.get("uses", "")}

    assert folders == {"release/"}
    assert publish["with"]["packages-dir"] == "release/packages/"
    for made in ("packages", "SHA256SUMS", "palermo-$version.cdx.json"):
        assert made in _SCRIPT


@pytest.mark.parametrize("name", ["runtime", "image", "development", "docs", "release"])
def test_every_pin_has_the_hashes_of_its_files(name: str) -> None:
    text = (_REPOSITORY / "requirements" / f"{name}.txt").read_text().replace("\\\n", "")
    pins = [line for line in text.splitlines() if line and not line.startswith("#")]

    assert len(pins) > 5
    assert [line for line in pins if not re.match(r"[\w.-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line)] == []
