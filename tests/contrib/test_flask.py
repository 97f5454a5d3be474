"""Palermo in Flask: the context of jobs, the settings, the pages, the commands."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, current_app, redirect, request

import palermo
from palermo.client import client as clients
from palermo.client.client import Client
from palermo.contrib.flask import Palermo
from palermo.core.lifecycle import Raised, Succeeded
from palermo.core.message import Message
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from palermo.webui import Role, User
from palermo.worker.child.executor import Executor
from tests.contrib.conftest import output_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "flask_shop"

#: Makes an application with this configuration.
Make = Callable[..., Flask]


@pytest.fixture
def make() -> Iterator[Make]:
    jobs = Palermo()

    def make(**config: Any) -> Flask:
        app = Flask("shop")
        app.config.update(config)
        jobs.init_app(app)
        jobs.mount_pages(app, "/ops/jobs", auth=who, hosts=["shop.example.com"])
        return app

    yield make
    jobs.close_pages()


def who() -> Any:
    name = request.headers.get("X-User")
    if name == "nobody":
        return None
    return User(name, Role.OPERATOR) if name else redirect("/login")


@pytest.mark.parametrize("kind", ["plain", "async", "failing"])
def test_a_job_runs_in_an_application_context_that_is_torn_down(kind: str, make: Make, executor: Executor) -> None:
    seen: list[Any] = []
    app = make(SHOP="ours")
    app.teardown_appcontext(lambda error: seen.append(type(error)))

    @palermo.job(name="plain")
    def plain() -> None:
        seen.append(current_app.config["SHOP"])

    @palermo.job(name="async")
    async def in_loop() -> None:
        plain()

    @palermo.job(name="failing")
    def failing() -> None:
        raise LookupError(current_app.config["SHOP"])

    result = executor.run(Message(id="1", queue="jobs", job=kind, body=b"[]"))

    assert isinstance(result, Raised if kind == "failing" else Succeeded)
    assert seen == ([LookupError] if kind == "failing" else ["ours", type(None)])


def test_settings_come_from_the_newest_application(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PALERMO_URL")
    for name in ("first", "second"):
        make(PALERMO={"url": f"sqlite:///{tmp_path}/{name}.db"})
        assert clients.default_client().settings.url == f"sqlite:///{tmp_path}/{name}.db"

    palermo.connect(f"sqlite:///{tmp_path}/chosen.db")
    make(PALERMO={"url": f"sqlite:///{tmp_path}/third.db"})

    assert clients.default_client().settings.url == f"sqlite:///{tmp_path}/chosen.db"


def test_pages_ask_the_application_who_it_is_and_act_for_them(make: Make, client: Client) -> None:
    client.enqueue("shop.send", queue="a/b")
    browser, ann = make(SECRET_KEY="secret").test_client(), {"X-User": "ann"}

    assert browser.get("/ops/jobs/queues").location == "/login"
    assert browser.get("/ops/jobs/queues", headers={"X-User": "nobody"}).status_code == 401
    assert "ann" in browser.get("/ops/jobs/queues", headers=ann).text
    assert browser.get("/ops/jobs/queues", headers={**ann, "Host": "evil.example"}).status_code == 400
    assert browser.get("/ops/jobs/live", headers=ann).status_code == 204
    assert browser.post("/ops/jobs/api/queues/a%2Fb/pause", headers=ann, json={}).status_code == 200
    assert [row["paused"] for row in Inspector(client).queues.list() if row["name"] == "a/b"] == [True]


def test_flask_palermo_has_the_other_commands(make: Make, tmp_path: Path) -> None:
    runner = make(PALERMO={"url": f"sqlite:///{tmp_path}/jobs.db"}).test_cli_runner()

    runner.invoke(args=["palermo", "enqueue", "shop.send"])
    found = runner.invoke(args=["palermo", "queues", "--json"])

    assert '"failed"' in found.output
    assert (found.exit_code, runner.invoke(args=["palermo", "queuse"]).exit_code) == (0, 2)


@pytest.mark.slow
def test_flask_palermo_runs_the_worker_of_the_application(tmp_path: Path) -> None:
    with Client(Settings(url=f"sqlite:///{tmp_path}/jobs.db", publish_timeout=30)) as client:
        client.enqueue("flask_shop.send_receipt", [1], queue="mail")
    command = ["-m", "flask", "--app", "flask_shop", "palermo", "worker", "--burst"]

    log = output_of(command, EXAMPLE, {**os.environ, "PALERMO_URL": "", "SHOP_DATA": str(tmp_path)})

    assert f"broker=sqlite:///{tmp_path}/jobs.db" in log
    assert "NoResultFound" in log  # the job found the application, and its database
