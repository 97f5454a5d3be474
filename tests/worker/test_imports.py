"""The imports of programs and of a worker's processes: each module that one does not need costs it time and memory."""

import os
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import pytest

#: What the command imports before it forks, what the fork goes on with, and what the parent does.
BEFORE = "import palermo.cli.worker, palermo.settings.settings, palermo.worker.parent.run, palermo.worker.logs"
TEMPLATE = f"{BEFORE}; import palermo.worker.child.template"
PARENT = (
    f"{BEFORE}; import palermo.worker.pools.children, palermo.worker.pools.forked_pool, palermo.worker.parent.main,"
    " palermo.brokers.rabbitmq"
)

#: What the user's modules need, and the template with them: the parent would be later for its first job with it.
DECLARING = (
    "palermo.client.decorator palermo.client.handle palermo.client.prepare palermo.core.backoff palermo.jobs.definition"
    " palermo.jobs.hooks palermo.jobs.options palermo.jobs.option_kinds"
)

#: What no process needs, since a first job would wait for it.
NOWHERE = (
    "importlib.metadata email zipfile tempfile tomllib zoneinfo cronsim difflib sqlite3 multiprocessing rich fastapi"
    " opentelemetry prometheus_client zstandard"
)


def imported(program: str) -> set[str]:
    """The modules of an interpreter that has run this, without those that an environment's own start brings."""
    source = f"{program}\nimport sys; print(*sys.modules)"
    paths = (str(Path(__file__).parents[2]), *{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    run = subprocess.run(
        [sys.executable, "-S", "-c", source], env=environment, capture_output=True, text=True, check=True
    )
    return set(run.stdout.split())


@pytest.mark.parametrize(
    ("program", "needless"),
    [
        (
            "import palermo; palermo.job(lambda: 0, name='x')",
            "asyncio click fastapi hashlib msgpack pika redis ssl uvloop palermo.core.message palermo.client.client",
        ),
        (
            "import palermo.contract.serialization as s; s.Serializers.default()",
            "json msgpack pickle hmac palermo.serializers.json",
        ),
        (BEFORE, f"hashlib ctypes uvloop pika palermo.client.client palermo.worker.parent.worker {DECLARING}"),
        (
            TEMPLATE,
            "uvloop pika palermo.worker.parent.worker palermo.worker.child.shared_slots palermo.worker.pools.child",
        ),
        (
            PARENT,
            "ctypes palermo.client.client palermo.worker.child.executor palermo.worker.child.template"
            " palermo.brokers.rabbitmq.diagnosis palermo.brokers.rabbitmq.migration"
            " palermo.brokers.rabbitmq.scheduling.due_jobs palermo.brokers.rabbitmq.leadership.leader"
            " palermo.brokers.rabbitmq.leadership.main_duty palermo.brokers.rabbitmq.leadership.fair_scheduler"
            f" {DECLARING}",
        ),
    ],
    ids=["declaring", "serializers", "before the fork", "template and slots", "parent"],
)
def test_no_program_or_process_imports_what_it_does_not_need(program: str, needless: str) -> None:
    assert sorted(imported(program) & {*NOWHERE.split(), *needless.split()}) == []
    assert [name for name in needless.split() if find_spec(name) is None] == []


def test_what_both_sides_of_the_fork_need_is_there_before_it() -> None:
    before, template, parent = (
        {name for name in imported(program) if name.startswith(("palermo.", "asyncio"))}
        for program in (BEFORE, TEMPLATE, PARENT)
    )

    assert sorted((template & parent) - before) == []


def test_the_command_blocks_signals_before_it_imports_much() -> None:
    started = imported("") | {"types", "_signal"}

    assert imported("import palermo.__main__") - started == {"palermo", "palermo.__main__", "palermo.blocked_signals"}
