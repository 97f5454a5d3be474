"""Queues, on their page and in the API."""

from urllib.parse import quote

import pytest

from tests.webui.server import Web

_NAMES = ["mail", "a/b", "100 %", "ä€😀", "%2F", "x" * 127, "?a=b&c#d", '"><script>alert(1)</script>']


@pytest.fixture
def web(shared_web: Web) -> Web:
    """One server for the module."""
    return shared_web


def test_the_api_lists_the_rows_of_the_command_line(any_web: Web) -> None:
    any_web.client.enqueue("shop.mail", queue="mail")

    listed = any_web.http.get("/api/queues").json()

    assert listed == {"rows": any_web.inspector.queues(), "total": 2, "page": 1, "limit": 2}


@pytest.mark.parametrize("name", _NAMES)
def test_a_queue_of_any_name_is_purged_by_the_api(any_served: Web, name: str) -> None:
    any_served.client.enqueue("shop.mail", queue=name)

    done = any_served.http.post(f"/api/queues/{quote(name, safe='')}/purge")

    assert (done.status_code, done.json()) == (200, {"removed": 1})


@pytest.mark.parametrize("name", _NAMES)
def test_a_queue_of_any_name_is_purged_by_its_form(web: Web, name: str) -> None:
    web.client.enqueue("shop.mail", queue=name)

    page = web.form("/queues", f"/queues/{quote(name, safe='')}/purge")

    assert "Removed 1 job from" in page.text
    assert f'hx-get="/queues/{quote(name, safe="")}"' in page.text
    assert web.inspector.size(name) == 0
