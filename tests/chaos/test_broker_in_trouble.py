"""A broker that stores nothing, and a worker that lives: what each command, probe and page says, and how soon.

Commands that only look work, or say the cause. Probes stay green, since a worker that is merely blocked is healthy.
"""

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.rig import ANSWER, Rig
from tests.helpers import eventually
from tests.rabbitmq_node import Node, clear_alarm, raise_alarm, set_vhost_limits, temporary_vhost, url_of
from tests.redis_node import running
from tests.webui.process import WebProcess

#: Seconds that a page waits for the broker at first; what is known later is shown at once.
SEEN = 30.0


class Trouble(NamedTuple):
    """A kind of trouble."""

    #: A context of the test's request: a broker's URL, and what brings it into trouble.
    broker: Callable[[pytest.FixtureRequest], AbstractContextManager[tuple[str, Callable[[], object]]]]
    #: What must be said of it.
    cause: str


@contextmanager
def _rabbitmq(request: pytest.FixtureRequest) -> Iterator[tuple[str, Callable[[], object]]]:
    node: Node = request.getfixturevalue("module_node")
    yield url_of(node), lambda: raise_alarm(node, "disk")
    clear_alarm(node, "disk")


@contextmanager
def _redis(*change: str) -> Iterator[tuple[str, Callable[[], object]]]:
    with running("--save", "") as node:
        yield node.url, lambda: node.ask(*change)


@contextmanager
def _redis_without_snapshots() -> Iterator[tuple[str, Callable[[], object]]]:
    with running("--save", "") as node:

        def fail() -> None:
            node.ask("CONFIG", "SET", "save", "3600 1")
            # A folder in the place of the snapshot, which no user can overwrite.
            (node.socket.parent / "dump.rdb").mkdir()
            node.ask("BGSAVE")
            eventually(lambda: b"rdb_last_bgsave_status:err" in node.ask("INFO", "persistence"))

        yield node.url, fail


@contextmanager
def _full_disk() -> Iterator[tuple[str, Callable[[], object]]]:
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"palermo-full-{os.getpid()}"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], check=True)
    try:

        def fill() -> None:
            with (folder / "filling").open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(4096))

        yield f"sqlite:///{folder}/jobs.db", fill
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()


TROUBLES = {
    "disk": Trouble(_rabbitmq, "disk alarm"),
    "redis-full": Trouble(lambda _: _redis("CONFIG", "SET", "maxmemory", "1"), "its memory is full"),
    "redis-snapshot": Trouble(lambda _: _redis_without_snapshots(), "cannot write its snapshot"),
    "redis-replica": Trouble(lambda _: _redis("REPLICAOF", "127.0.0.1", "1"), "is a replica"),
}
if os.geteuid() == 0 and os.path.exists("/proc/mounts"):
    TROUBLES["sqlite-full"] = Trouble(lambda _: _full_disk(), "the disk is full")


class Troubled(NamedTuple):
    """A broker in trouble, with all that was there before."""

    rig: Rig
    web: WebProcess
    cause: str
    failed_id: str
    pidfile: str


@pytest.fixture(scope="module", params=list(TROUBLES))
def troubled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Troubled]:
    trouble = TROUBLES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        url, begin = stack.enter_context(trouble.broker(request))
        rig = stack.enter_context(Rig(folder, url, request.param, publish_timeout=5.0, module="shop"))
        pidfile = str(folder / "worker.pid")
        worker = rig.idle("-q", "jobs,mail", "--pidfile", pidfile)
        failed_id = rig.enqueue("fail", "before the trouble")
        rig.enqueue("note", "waits", queue="unserved")
        eventually(lambda: failed_id in rig.failed())
        served = {"PALERMO_URL": url, "PALERMO_EXCHANGE": rig.exchange}
        web = stack.enter_context(WebProcess(folder, "--no-token", **served))
        assert web.http.get("/queues").status_code == 200
        begin()
        yield Troubled(rig, web, trouble.cause, failed_id, pidfile)
        assert worker.alive, worker.log


#: Commands that look or change something: each does what it is for, or says why it cannot.
COMMANDS = (
    *("queues", "workers", "jobs unserved", "tenants unserved", "limits", "stats", "failed list", "failed groups"),
    *("scheduled list", "retries list", "recurring list", "unique list", "topics list", "history", "audit"),
    *("status ID", "cancel ID", "failed requeue ID", "enqueue shop.note -q unserved", "pause mail", "resume mail"),
    *("control quiet --all", "purge unserved --yes"),
)


def _at_once(check: Callable[[str], None], cases: Iterable[str]) -> None:
    """Check these cases, some at a time: each waits for a broker that does not answer. Fails with all that failed."""
    with ThreadPoolExecutor(4) as pool:
        checks = {case: pool.submit(check, case) for case in cases}
    if failed := {case: error for case, check in checks.items() if (error := check.exception()) is not None}:
        pytest.fail("\n\n".join(f"{case}: {error}" for case, error in failed.items()))


def test_every_command_works_or_names_the_cause_soon(troubled: Troubled) -> None:
    def check(command: str) -> None:
        code, said = troubled.rig.answer(command.replace("ID", troubled.failed_id))
        assert code == 0 or troubled.cause in said, said

    _at_once(check, COMMANDS)


def test_the_commands_that_operators_run_first_name_the_cause(troubled: Troubled) -> None:
    def check(command: str) -> None:
        _, said = troubled.rig.answer(command)
        assert troubled.cause in said, said
        assert command != "check" or said.count(troubled.cause) == 1, said

    _at_once(check, ["queues", "check", "doctor", "enqueue shop.note -q unserved"])


def test_all_probes_of_a_blocked_worker_stay_green(troubled: Troubled) -> None:
    def check(options: str) -> None:
        code, said = troubled.rig.answer(f"check {options}".replace("PIDFILE", troubled.pidfile))
        # A replica can't say how many workers its primary has.
        unknown = "--workers" in options and "queues and workers cannot be read" in said
        assert code == (1 if unknown else 0), said

    _at_once(check, ["", "--pidfile PIDFILE", "--this-host", "--workers 1", "-q jobs --workers 1"])
    eventually(lambda: troubled.web.http.get("/healthz").status_code == 200, within=SEEN)


PAGES = ("/", "/queues", "/queues/unserved", "/workers", "/failures", "/scheduled", "/history", "/problems", "/limits")


def _banner(web: WebProcess, path: str) -> str:
    began = time.monotonic()
    page = web.http.get(path)
    assert time.monotonic() - began < ANSWER
    assert page.status_code in (200, 503)
    (found,) = re.findall(r'<div id="trouble".*?</div>', page.text, re.DOTALL)
    return found


def test_each_page_shows_one_banner_with_the_cause(troubled: Troubled) -> None:
    for path in PAGES:
        eventually(lambda path=path: troubled.cause in _banner(troubled.web, path), within=SEEN)  # type: ignore[misc]
    # A replica is no broker: the pages say so, and show nothing that may be old.
    readable = 503 if "replica" in troubled.cause else 200
    for path in ("/", "/queues", "/workers", "/failures"):
        eventually(lambda path=path: troubled.web.http.get(path).status_code == readable, within=SEEN)  # type: ignore[misc]


@pytest.fixture
def vhost(module_node: Node) -> Iterator[str]:
    with temporary_vhost(module_node, "limited") as name:
        yield name


def test_check_and_pages_name_a_queue_limit_that_keeps_workers_from_jobs(
    module_node: Node, vhost: str, tmp_path: Path
) -> None:
    with (
        Rig(tmp_path, url := url_of(module_node, vhost=vhost), "palermo", module="shop") as rig,
        WebProcess(tmp_path, "--no-token", PALERMO_URL=url) as web,
    ):
        rig.enqueue("note", "waits")
        assert "hidden" in _banner(web, "/")
        set_vhost_limits(module_node, vhost, {"max-queues": 1})
        pidfile = str(tmp_path / "worker.pid")
        worker = rig.worker("--pidfile", pidfile)
        eventually(lambda: "cannot take jobs" in worker.log)

        for options in ((), ("--pidfile", pidfile), ("--this-host",)):
            said = rig.palermo("check", *options, code=1)
            assert "queue limit in vhost" in said
            assert "rabbitmqctl list_vhost_limits" in said
        for path in ("/", "/queues", "/workers", "/problems"):
            eventually(lambda path=path: "queue limit in vhost" in _banner(web, path), within=SEEN)


def test_each_command_and_a_new_web_server_name_a_connection_limit(
    module_node: Node, vhost: str, tmp_path: Path
) -> None:
    with Rig(tmp_path, url_of(module_node, vhost=vhost), "palermo", module="shop") as rig:
        set_vhost_limits(module_node, vhost, {"max-connections": 0})

        for command in ("queues", "check", "doctor", "failed list"):
            code, said = rig.answer(command)
            assert code != 0
            assert "connection limit" in said
        # A web server that was connected before the limit keeps its connection, and has nothing to report.
        with WebProcess(tmp_path, "--no-token", PALERMO_URL=rig.url) as web:
            for path in ("/", "/queues", "/workers", "/problems"):
                assert "connection limit" in _banner(web, path)


def test_each_command_says_soon_that_redis_is_loading(tmp_path: Path) -> None:
    with running("--save", "", "--appendonly", "no") as node, Rig(tmp_path, node.url, "palermo", module="shop") as rig:
        rig.enqueue("note", "waits")
        node.ask("MSET", *(f"palermo-test-{n // 2}" if n % 2 == 0 else "x" * 4_000 for n in range(8_000)))
        node.ask("SAVE")
        node.stop()
        # Commands are answered after each key.
        node.start("--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024")

        for command in ("queues", "check", "doctor", "failed list"):
            _, said = rig.answer(command, PALERMO_PUBLISH_TIMEOUT="5")
            assert "is loading its data" in said
