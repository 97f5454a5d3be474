"""A RabbitMQ user who may only read: what each command and page says, while a healthy worker runs.

No worker is called dead, silent or missing. What cannot be read says what RabbitMQ refuses to this user.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.rabbitmq_node import Node, add_user, set_permissions, url_of, version_of
from tests.rabbitmq_tidy import Tidy
from tests.webui.process import WebProcess

pytestmark = pytest.mark.slow

_GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "rabbitmq.md"

#: Its name says "limit", which means no limit of RabbitMQ's.
USER = "limited"

MAY_NOT_ASK = f"User {USER} of RabbitMQ at"
REFUSED = f"does not let user '{USER}' do this"

#: What must not be said of a worker that is well.
BLAMES = ("does not answer", "do not answer", "no worker", "none is running", "silent", "dead", "kill -9", "0 workers")


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
        code, said = self.rig.answer(command, PALERMO_URL=self.url)
        assert "list_vhost_limits" not in said
        return code, said


@pytest.fixture(scope="module")
def look(shared_node: Node, tidy: Tidy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Look]:
    node, folder, exchange = shared_node, tmp_path_factory.mktemp("look"), "only-looked-at"
    add_user(node, USER, "secret")
    set_permissions(node, USER, "^$", "^$", ".*")
    with Rig(folder, url_of(node), exchange, module="shop") as rig:
        pidfile = str(folder / "worker.pid")
        worker = rig.worker("-q", "jobs,mail", "-c", "2", "--pidfile", pidfile)
        rig.ready(worker)
        ids = {"FAILED": rig.enqueue("fail", "at once"), "DONE": rig.enqueue("note", "soon")}
        ids["RUNNING"] = rig.enqueue("hold", "for long")
        rig.enqueue("note", "waits", queue="unserved")
        rig.palermo("enqueue", "shop.note", "-q", "unserved", "--tenant", "acme", "--args", '["of a tenant"]')
        eventually(lambda: ids["FAILED"] in rig.failed())
        rig.await_lines(2)
        yield Look(node, rig, url_of(node, user=USER, password="secret"), ids, pidfile)
        assert worker.alive, worker.log
        assert rig.only_worker()["pid"] == worker.pid
    tidy(rig.url, exchange)


ASKING = (
    *("workers", "top --once", "stats", "status RUNNING", "queues"),
    *("check -q jobs --workers 1", "check --pidfile PIDFILE", "check --this-host"),
)


@pytest.mark.parametrize("command", ASKING)
def test_a_user_who_may_only_look_sees_no_worker_as_dead(look: Look, command: str) -> None:
    def told() -> str:
        code, said = look.run(command)
        assert code == 0, said
        assert MAY_NOT_ASK in said
        assert not [blame for blame in BLAMES if blame in said], said
        # What the worker wrote down of a job that takes long.
        return said if look.rig.only_worker()["id"] in said or command.startswith(("queues", "check")) else ""

    assert eventually(told)


def test_doctor_says_what_the_user_may_not_do_and_blames_no_worker(look: Look) -> None:
    _, said = look.run("doctor")

    assert f"broker: {MAY_NOT_ASK}" in said
    assert f"{look.rig.exchange}.~control" in said
    assert REFUSED in said
    assert not [blame for blame in BLAMES if blame in said], said


SHOWN = (
    *("history DONE", "audit", "topics list", "unique list"),
    *("status DONE", "status FAILED", "wait DONE --timeout 5"),
)


@pytest.mark.parametrize("command", SHOWN)
def test_a_command_shows_what_can_be_read(look: Look, command: str) -> None:
    code, said = look.run(command)

    assert code == 0, said
    assert REFUSED not in said


#: By what this user is refused: commands that look, and commands that change something.
REFUSALS = {
    "EXCHANGE": ("jobs unserved", "failed list", "enqueue shop.note -q unserved", "failed requeue FAILED"),
    "amq.default": ("tenants unserved", "scheduled list", "recurring list", "limits", "retries run --all --yes"),
    "": ("publish order.paid", "pause mail", "cancel RUNNING", "control quiet --all", "purge unserved --yes"),
}


@pytest.mark.parametrize(("what", "command"), [(what, one) for what, each in REFUSALS.items() for one in each])
def test_a_command_that_is_refused_says_what_the_user_may_not_do(look: Look, what: str, command: str) -> None:
    code, said = look.run(command)

    assert code == (1 if command == "jobs unserved" else 3), said
    assert REFUSED in said
    assert what.replace("EXCHANGE", look.rig.exchange) in said


@pytest.fixture(scope="module")
def web(look: Look, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    as_user = {"PALERMO_URL": look.url, "PALERMO_EXCHANGE": look.rig.exchange}
    with WebProcess(tmp_path_factory.mktemp("web"), "--no-token", **as_user) as web:
        eventually(lambda: web.http.get("/workers").status_code == 200)
        yield web


#: Pages that can be shown to this user, and pages that cannot.
SHOWN_PAGES = (
    *("/", "/queues", "/queues/jobs", "/queues/unserved", "/workers", "/failures", "/history", "/statistics"),
    *("/problems", "/jobs/RUNNING", "/jobs/DONE", "/jobs/FAILED"),
)
REFUSED_PAGES = ("/scheduled", "/limits")


@pytest.mark.parametrize("path", [*SHOWN_PAGES, *REFUSED_PAGES])
def test_each_page_says_that_workers_cannot_be_asked_and_blames_none(look: Look, web: WebProcess, path: str) -> None:
    page = web.http.get("/jobs/" + look.ids[path.removeprefix("/jobs/")] if "/jobs/" in path else path)

    (banner,) = re.findall(r'<div id="trouble".*?</div>', page.text, re.DOTALL)
    (main,) = re.findall(r"<main.*</main>", page.text, re.DOTALL)
    assert MAY_NOT_ASK in banner
    assert page.status_code == (403 if path in REFUSED_PAGES else 200)
    assert path in SHOWN_PAGES or "does not let user" in main
    blames = ("does not answer", "No worker serves", "No worker is running", "no worker</span>", "kill -9")
    assert not [blame for blame in blames if blame in main]
    assert web.http.get("/healthz").status_code == 200


def test_an_idle_worker_counts_for_a_user_who_may_only_look(look: Look, tmp_path: Path, exchange: str) -> None:
    with Rig(tmp_path, look.rig.url, exchange, queue_type="quorum") as rig:
        rig.ready(rig.worker())

        done = rig.run("workers", "--json", PALERMO_URL=look.url)

    (row,) = json.loads(done.stdout)
    assert (row["state"], row["answers"]) == ("unasked", False)


def test_the_user_of_the_guide_sees_what_it_says(look: Look) -> None:
    narrow, wide = re.findall(r"^rabbitmqctl set_permissions viewer (.*)$", _GUIDE.read_text(), re.MULTILINE)
    is_new = version_of(look.rig.url) >= (4,)
    line = (wide if is_new else narrow).replace("palermo", look.rig.exchange)
    set_permissions(look.node, USER, *shlex.split(line))
    try:
        for command in ("queues", "workers", "check --workers 1", "history", "topics list"):
            code, said = look.run(command)
            assert code == 0, said
            assert REFUSED not in said
        if not is_new:
            # RabbitMQ itself refuses it, to any program.
            refused = pytest.raises(ChannelClosedByBroker, match="refused")
            with pika.BlockingConnection(pika.URLParameters(look.url)) as connection, refused:
                connection.channel().queue_purge("unserved")
    finally:
        set_permissions(look.node, USER, "^$", "^$", ".*")


def test_a_user_who_may_do_all_but_ask_is_told_so_when_it_orders_workers(look: Look) -> None:
    add_user(look.node, "clerk", "secret")
    set_permissions(look.node, "clerk", ".*", rf"^(?!{look.rig.exchange}\.~control)", ".*")
    url = url_of(look.node, user="clerk", password="secret")

    ordered = look.rig.run("control", "quiet", "--all", PALERMO_URL=url)
    checked = look.rig.run("check", PALERMO_URL=url)
    stored = look.rig.run("enqueue", "shop.note", "-q", "jobs", "--args", '["by the clerk"]', PALERMO_URL=url)

    assert ordered.returncode == 3
    assert f"exchange '{look.rig.exchange}.~control'" in ordered.stderr
    assert (checked.returncode, "User clerk of RabbitMQ" in checked.stdout) == (0, True)
    assert stored.returncode == 0, stored.stderr
    eventually(lambda: "by the clerk" in look.rig.lines())
