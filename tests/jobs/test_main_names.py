"""A job in `__main__` is named as the worker that imports its module will name it."""

import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """
import multiprocessing
import palermo

@palermo.job
def resize(path): ...

@palermo.job
class SendMail:
    class Nested:
        pass
    def process(self): ...

def show(queue):
    queue.put((resize.definition.name, SendMail.definition.name))

if __name__ == "__main__":
    print(resize.definition.name, SendMail.definition.name)
    if __spec__ is not None and __spec__.name.endswith("__main__"):
        raise SystemExit  # multiprocessing does not import such a module again
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=show, args=(queue,))
    child.start()
    print(*queue.get(timeout=60))
    child.join()
"""


@pytest.mark.parametrize(
    ("command", "module"),
    [(["-m", "shop.tasks"], "shop.tasks"), (["shop/tasks.py"], "tasks"), (["-m", "shop"], "shop.__main__")],
)
def test_a_job_in_main_is_named_by_its_modules_path(tmp_path: Path, command: list[str], module: str) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    for name in ("tasks", "__main__"):
        (tmp_path / "shop" / f"{name}.py").write_text(SOURCE)

    run = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=100)

    assert run.stderr == ""
    assert set(run.stdout.splitlines()) == {f"{module}.resize {module}.SendMail"}
