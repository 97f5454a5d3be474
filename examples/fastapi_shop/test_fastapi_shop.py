"""The tests of the example: `python -m pytest`."""

from collections.abc import Iterator
from typing import Any

import fastapi_shop
import pytest
from sqlalchemy.orm import Session
from starlette.testclient import TestClient


@pytest.fixture
def client() -> Iterator[TestClient]:
    """A browser, and the running application."""
    with TestClient(fastapi_shop.app, base_url="http://localhost") as client:
        yield client


def orders() -> int:
    with Session(fastapi_shop.engine) as session:
        return session.query(fastapi_shop.Order).count()


def order(client: TestClient, card: str = "good") -> dict[str, Any]:
    answer: dict[str, Any] = client.post("/orders", json={"email": "a@example.com", "total": 30, "card": card}).json()
    return answer


def test_an_order_has_its_receipt_sent_soon(client: TestClient) -> None:
    job = order(client)["job"]

    assert client.get(f"/jobs/{job}").json() == {"status": "pending"}


def test_a_refused_card_leaves_no_order_and_no_job(client: TestClient) -> None:
    before = orders(), fastapi_shop.outbox.waiting(fastapi_shop.engine)[0]

    assert order(client, card="expired") == {"detail": "the card has expired"}

    assert (orders(), fastapi_shop.outbox.waiting(fastapi_shop.engine)[0]) == before


def test_a_receipt_is_sent_once_even_if_the_job_runs_twice(
    client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    number = order(client)["order"]

    fastapi_shop.send_receipt(number)
    fastapi_shop.send_receipt(number)

    assert capsys.readouterr().out.count("mail to a@example.com") == 1


def test_the_pages_of_jobs_are_for_staff(client: TestClient) -> None:
    [token] = fastapi_shop.STAFF
    assert client.get("/ops/jobs/queues").status_code == 401

    page = client.get("/ops/jobs/queues", headers={"Authorization": f"Bearer {token}"})

    assert "Palermo" in page.text
