"""The tests of the example: `python -m pytest`."""

from collections.abc import Iterator
from pathlib import Path

import flask_shop
import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import func, select

import palermo


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Flask]:
    """An application with a database and a broker of its own."""
    app = flask_shop.create_app(
        DATABASE=f"sqlite:///{tmp_path}/shop.db", PALERMO={"url": f"sqlite:///{tmp_path}/jobs.db"}, TESTING=True
    )
    yield app
    flask_shop.jobs.close_pages()
    app.extensions["engine"].dispose()


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    """A browser."""
    return app.test_client()


def order(client: FlaskClient, card: str = "good") -> int:
    return client.post("/orders", data={"email": "a@example.com", "total": "30", "card": card}).status_code


def waiting() -> dict[str, int]:
    return {row["name"]: row["pending"] for row in palermo.inspector().queues.list() if row["pending"]}


def orders(app: Flask) -> int | None:
    with app.app_context():
        return flask_shop.database().scalar(select(func.count()).select_from(flask_shop.Order))


def test_an_order_has_its_receipt_sent_after_the_commit(app: Flask, client: FlaskClient) -> None:
    assert order(client) == 201

    assert (orders(app), waiting()) == (1, {"mail": 1})


def test_a_refused_card_leaves_no_order_and_no_job(app: Flask, client: FlaskClient) -> None:
    assert order(client, card="expired") == 402

    assert (orders(app), waiting()) == (0, {})


def test_a_receipt_is_sent_once_even_if_the_job_runs_twice(
    app: Flask, client: FlaskClient, caplog: pytest.LogCaptureFixture
) -> None:
    order(client)

    for _ in range(2):
        with app.app_context():
            flask_shop.send_receipt(1)

    assert caplog.text.count("mail to a@example.com") == 1


def test_the_pages_of_jobs_are_for_staff(client: FlaskClient) -> None:
    assert client.get("/ops/jobs/queues").location == "/login"
    assert client.post("/login", data={"name": "ann", "password": "wrong"}).status_code == 401

    client.post("/login", data={"name": "ann", "password": "the password of this example"})

    assert "Palermo" in client.get("/ops/jobs/queues").text
