"""A RabbitMQ user who may only read: what each command and page says, while a healthy worker runs.

No worker is called dead, silent or missing. What cannot be read says what RabbitMQ refuses to this user.
"""

import json
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests import rabbitmq_found
from tests.harness.rig import Rig
from tests.helpers import eventually, has_traceback
from tests.rabbitmq_node import Node, add_user, set_permissions, url_of, version_of, with_durable_streams
from tests.webui.process import WebProcess

_GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "rabbitmq.md"

#: Seconds within which anything must answer: five in truth, on a machine that others keep busy too.
ANSWER = 15.0

MAY_NOT_ASK = "User viewer of RabbitMQ at"
REFUSED = "does not let user 'viewer' do this"

#: What must not be said of a worker that is well.
BLAMES = ("does not answer", "do not answer", "no worker", "none runs", "silent", "dead", "kill -9", "0 workers")


class Look(NamedTuple):
    """A broker with one healthy worker, as a user sees it who may only read."""

    node: Node
    rig: Rig
    url: str
    ids: dict[str, str]
    pidfile: str

    def run(self, command: str) -> tuple[int, str]:
        """The exit code, and all that was printed."""
        for name, value in {**self.ids, "PIDFILE": self.pidfile}.items():
            command = command.replace(name, value)
        began = time.monotonic()
        done = self.rig.run(*shlex.split(command), PALERMO_URL=self.url)
        said = done.stdout + done.stderr
        assert time.monotonic() - began < ANSWER, said
        assert not has_traceback(said)
        assert "unexpected" not in said
        return done.returncode, said


@pytest.fixture(scope="module", params=["classic", "quorum"])
def look(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Look]:
    folder = tmp_path_factory.mktemp(request.param)
    with ExitStack() as stack:
        node = with_durable_streams(stack.enter_context(rabbitmq_found.find()()))
        add_user(node, "viewer", "secret")
        set_permissions(node, "viewer", "^$", "^$", ".*")
        rig = stack.enter_context(Rig(folder, url_of(node), "palermo", queue_type=request.param, module="shop"))
        pidfile = str(folder / "worker.pid")
        worker = rig.worker("-q", "jobs,mail", "-c", "2", "--pidfile", pidfile)
        rig.ready(worker)
        ids = {"FAILED": rig.enqueue("fail", "at once"), "DONE": rig.enqueue("note", "soon")}
        ids["RUNNING"] = rig.enqueue("hold", "for long")
        rig.enqueue("note", "waits", queue="unserved")
        rig.palermo("enqueue", "shop.note", "-q", "unserved", "--tenant", "acme", "--args", '["of a tenant"]')
        eventually(lambda: ids["FAILED"] in rig.failed())
        rig.await_lines(2)
        yield Look(node, rig, url_of(node, user="viewer", password="secret"), ids, pidfile)
        assert worker.alive, worker.log
        assert rig.only_worker()["pid"] == worker.pid


@pytest.mark.parametrize("command", ["queues", "workers", "top --once", "stats", "status RUNNING"])
def test_a_user_who_may_only_look_sees_no_worker_as_dead(look: Look, command: str) -> None:
    def told() -> str:
        code, said = look.run(command)
        assert code == 0, said
        assert MAY_NOT_ASK in said
        assert not [blame for blame in BLAMES if blame in said], said
        # What the worker wrote down of a job that takes long.
        return said if look.rig.only_worker()["id"] in said or command == "queues" else ""

    assert eventually(told)


@pytest.mark.parametrize("options", ["", "--workers 1", "-q jobs --workers 1", "--pidfile PIDFILE", "--this-host"])
def test_check_fails_no_worker_that_it_may_not_ask(look: Look, options: str) -> None:
    code, said = look.run(f"check {options}")

    assert code == 0, said
    assert MAY_NOT_ASK in said
    assert not [blame for blame in BLAMES if blame in said], said


def test_doctor_says_what_the_user_may_not_do_and_blames_no_worker(look: Look) -> None:
    _, said = look.run("doctor")

    assert f"broker: {MAY_NOT_ASK}" in said
    assert "palermo.~control" in said
    assert REFUSED in said
    assert not [blame for blame in BLAMES if blame in said], said


#: Commands that look: what of it this user is refused.
LOOKING = {
    "queues": "",
    "history": "",
    "history DONE": "",
    "audit": "",
    "topics list": "",
    "unique list": "",
    "status DONE": "",
    "status FAILED": "",
    "wait DONE --timeout 5": "",
    "jobs unserved": "'palermo'",
    "tenants unserved": "'amq.default'",
    "failed list": "'palermo'",
    "failed groups": "'palermo'",
    "scheduled list": "'amq.default'",
    "retries list": "'amq.default'",
    "recurring list": "'amq.default'",
    "limits": "'amq.default'",
}


@pytest.mark.parametrize("command", LOOKING)
def test_each_command_shows_what_can_be_read_or_says_what_is_refused(look: Look, command: str) -> None:
    code, said = look.run(command)

    if refused := LOOKING[command]:
        assert code != 0, said
        assert REFUSED in said
        assert refused in said
    else:
        assert code == 0, said
        assert REFUSED not in said


CHANGING = (
    "enqueue shop.note -q unserved",
    "publish order.paid",
    "pause mail",
    "cancel RUNNING",
    "failed requeue FAILED",
    "failed discard FAILED --yes",
    "control quiet --all",
    "control stop --all --yes",
    "purge unserved --yes",
    "delete unserved --yes",
    "retries run --all --yes",
    "scheduled cancel --all --yes",
)


@pytest.mark.parametrize("command", CHANGING)
def test_what_changes_something_is_refused_and_says_why(look: Look, command: str) -> None:
    code, said = look.run(command)

    assert code == 3, said
    assert REFUSED in said


@pytest.fixture(scope="module")
def web(look: Look, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    with WebProcess(tmp_path_factory.mktemp("web"), "--no-token", PALERMO_URL=look.url) as web:
        eventually(lambda: web.http.get("/workers").status_code == 200)
        yield web


#: Pages, and whether they can be shown.
PAGES = {
    "/": True,
    "/queues": True,
    "/queues/jobs": True,
    "/queues/unserved": True,
    "/workers": True,
    "/failures": True,
    "/history": True,
    "/statistics": True,
    "/problems": True,
    "/jobs/RUNNING": True,
    "/jobs/DONE": True,
    "/jobs/FAILED": True,
    "/scheduled": False,
    "/limits": False,
}


@pytest.mark.parametrize("path", PAGES)
def test_each_page_says_that_workers_cannot_be_asked_and_blames_none(look: Look, web: WebProcess, path: str) -> None:
    page = web.http.get("/jobs/" + look.ids[path.removeprefix("/jobs/")] if "/jobs/" in path else path)

    (banner,) = re.findall(r'<div id="trouble".*?</div>', page.text, re.DOTALL)
    (main,) = re.findall(r"<main.*</main>", page.text, re.DOTALL)
    assert MAY_NOT_ASK in banner
    assert page.status_code == (200 if PAGES[path] else 403)
    assert PAGES[path] or "does not let user" in main
    blames = ("does not answer", "No worker serves", "No worker is running", "no worker</span>", "kill -9")
    assert not [blame for blame in blames if blame in main]


def test_healthz_is_green_for_a_user_who_may_only_look(web: WebProcess) -> None:
    assert web.http.get("/healthz").status_code == 200


def test_an_idle_worker_counts_for_a_user_who_may_only_look(look: Look, tmp_path: Path) -> None:
    exchange = "idle"
    with Rig(tmp_path, look.rig.url, exchange, queue_type="quorum") as rig:
        rig.ready(rig.worker())

        done = rig.run("workers", "--json", PALERMO_URL=look.url)

    (row,) = json.loads(done.stdout)
    assert (row["state"], row["answers"]) == ("unasked", False)


def test_the_user_of_the_guide_sees_what_it_says(look: Look) -> None:
    narrow, wide = re.findall(r"^rabbitmqctl set_permissions viewer (.*)$", _GUIDE.read_text(), re.MULTILINE)
    is_new = version_of(look.rig.url) >= (4,)
    line = wide if is_new else narrow
    set_permissions(look.node, "viewer", *shlex.split(line))
    try:
        for command in ("queues", "workers", "check --workers 1", "history", "audit", "stats", "topics list"):
            code, said = look.run(command)
            assert code == 0, said
            assert REFUSED not in said
        if not is_new:
            # RabbitMQ itself refuses it, to any program.
            refused = pytest.raises(ChannelClosedByBroker, match="refused")
            with pika.BlockingConnection(pika.URLParameters(look.url)) as connection, refused:
                connection.channel().queue_purge("unserved")
    finally:
        set_permissions(look.node, "viewer", "^$", "^$", ".*")


def test_a_user_whose_name_says_limit_meets_no_limit(look: Look) -> None:
    add_user(look.node, "limited", "secret")
    set_permissions(look.node, "limited", "^$", "^$", ".*")

    done = look.rig.run("check", PALERMO_URL=url_of(look.node, user="limited", password="secret"))

    assert done.returncode == 0, done.stdout
    assert "User limited of RabbitMQ" in done.stdout
    assert "list_vhost_limits" not in done.stdout


def test_a_user_who_may_do_all_but_ask_is_told_so_when_it_orders_workers(look: Look) -> None:
    add_user(look.node, "clerk", "secret")
    set_permissions(look.node, "clerk", ".*", r"^(?!palermo\.~control)", ".*")
    url = url_of(look.node, user="clerk", password="secret")

    ordered = look.rig.run("control", "quiet", "--all", PALERMO_URL=url)
    checked = look.rig.run("check", PALERMO_URL=url)
    stored = look.rig.run("enqueue", "shop.note", "-q", "jobs", "--args", '["by the clerk"]', PALERMO_URL=url)

    assert ordered.returncode == 3
    assert "exchange 'palermo.~control'" in ordered.stderr
    assert (checked.returncode, "User clerk of RabbitMQ" in checked.stdout) == (0, True)
    assert stored.returncode == 0, stored.stderr
    eventually(lambda: "by the clerk" in look.rig.lines())
