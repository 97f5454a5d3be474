"""Runs the examples of one document: `python -m tests.doc_examples docs/learn/jobs.md`, in an empty folder.

The blocks of a page run in their order and share one module, as if a reader had put them into one file. The module is
`shop.tasks`; on a page that has a file `shop/tasks.py` it is `examples`.
tests/doc_pages.py says how a page hides what its examples need. Hidden blocks may call

    work()            a worker runs the jobs of this page until its queues are empty; no job may fail
    work(failing=1)   the same, and so many jobs lie in `failed` then
    run("palermo …")  what a shell prints on its standard output; it must end well
    serving("shop")   a context in which a worker runs the jobs of these modules
    shell             what the last shell block printed

The broker is the one that PALERMO_URL names. It prints the numbers of blocks that ran: Python, and shell.
"""

import importlib
import linecache
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.doc_pages import ROOT, Block, blocks


class Page:
    """A document whose examples run in this process and in this folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.blocks = list(blocks(path))
        files = {block.file for block in self.blocks}
        self.module = types.ModuleType("examples" if "shop/tasks.py" in files else "shop.tasks")
        helpers = {"work": self.work, "run": run, "serving": serving, "shell": ""}
        self.module.__dict__.update(helpers)
        sys.modules[self.module.__name__] = self.module
        sys.path.insert(0, "")
        self.counts = {"python": 0, "sh": 0}

    def run(self) -> None:
        """Run every block. Raises what an example raises, with its line in the document."""
        for block in self.blocks:
            if block.file is not None:
                self._write(block.file, block)
            elif block.language in ("python", "setup", "check"):
                exec(self._compiled(block), self.module.__dict__)
            elif block.is_run:
                self._shell(block)
            else:
                continue
            if block.language in self.counts:
                self.counts[block.language] += 1

    def _compiled(self, block: Block) -> types.CodeType:
        # Tracebacks, and jobs that are classes, look their source up by its lines in the document.
        linecache.cache[str(self.path)] = (1, None, self.path.read_text().splitlines(keepends=True), str(self.path))
        return compile("\n" * (block.line - 1) + block.code, str(self.path), "exec")

    def _write(self, name: str, block: Block) -> None:
        compile(block.code, name, "exec")
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if block.continues else "w") as file:
            file.write(block.code)
        sys.modules.pop(name.removesuffix(".py").replace("/", "."), None)
        importlib.invalidate_caches()

    def _shell(self, block: Block) -> None:
        try:
            self.module.__dict__["shell"] = run(block.code)
        except AssertionError as error:
            raise AssertionError(f"{self.path}:{block.line}: {error}") from None

    def work(self, *, failing: int = 0, queues: str = "*") -> None:
        """Run the jobs of this page in a worker until its queues are empty; `failing` of them have failed then."""
        import palermo
        from palermo.cli import main

        sys.stdout.flush()
        if (child := os.fork()) == 0:
            try:
                main(["worker", self.module.__name__, "--burst", "-q", queues, "--log-level", "error"])
            except SystemExit as ended:
                os._exit(ended.code if isinstance(ended.code, int) else 1)
            finally:
                os._exit(70)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == 0, f"the worker ended with {code}"
        failed = palermo.inspector().failed.list(limit=100)
        errors = [f"{each['job']}: {each['error']['class']}: {each['error']['message']}" for each in failed]
        assert len(failed) == failing, f"{len(failed)} jobs failed, not {failing}: {errors}"


def run(script: str) -> str:
    """What a shell prints that runs these lines. They must end well."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["sh", "-eu"], input=script, capture_output=True, text=True, timeout=120, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, f"{script!r} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def serving(*modules: str) -> Iterator[None]:
    """A worker that runs the jobs of these modules meanwhile."""
    import palermo

    with palermo.start_worker(modules, log_level="error", shutdown_timeout=5):
        yield


def main() -> None:
    page = Page((ROOT / sys.argv[1]).resolve())
    page.run()
    print(page.counts["python"], page.counts["sh"], flush=True)
    import palermo.client.client as client

    client.default_client().close()


if __name__ == "__main__":
    main()
