"""The examples of docs/guides/testing.md run as they stand, as files of one project."""

import re
import subprocess
import sys
from pathlib import Path

from tests.testing.test_plugin import NEEDLESS

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "testing.md"

_BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_example_of_the_guide_runs(tmp_path: Path) -> None:
    text = GUIDE.read_text()
    files = dict(_BLOCK.findall(text))
    for name, code in files.items():
        (tmp_path / name).write_text(code)

    command = [sys.executable, "-m", "pytest", *NEEDLESS, "-q", "-W", "error"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert len(files) == text.count("```python") > 5
    assert done.returncode == 0, done.stdout
    assert f"{len(re.findall(r'def test_', text))} passed" in done.stdout
