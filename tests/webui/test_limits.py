"""Limits in the API and on their page."""

import asyncio
from html import unescape

from palermo.contract.broker import open_broker
from tests.contract.tools import consume, message, take
from tests.webui.server import Web

KEY = 'shop.sync:<b>"eu"</b>'


def test_limits_are_listed_and_filtered(web: Web) -> None:
    async def go() -> None:
        """One of two limited jobs runs, and the other is put aside, until their worker is gone."""
        broker = await open_broker(web.inspector._client.settings.session("worker"))
        try:
            asks = {"limit": 1, "limit-key": KEY}
            await broker.publish_many([message(extra=asks), message(extra=asks)])
            consumer = await consume(broker, slots=2)
            assert [await consumer.permit(await take(consumer, slot)) for slot in (1, 2)] == [0.0, None]
            await asyncio.to_thread(look)
        finally:
            await broker.close()

    def look() -> None:
        row = {"key": KEY, "limit": 1, "rate": None, "running": 1, "waiting": 1}
        assert web.http.get("/api/limits").json() == {"rows": [row], "total": 1, "page": 1, "limit": 100}
        assert web.http.get("/api/limits?text=us").json()["rows"] == []
        text = web.http.get("/limits").text
        assert (KEY in text, KEY in unescape(text)) == (False, True)
        assert "No key matches." in web.http.get("/limits?text=us").text

    assert "No limited job runs or waits." in web.http.get("/limits").text
    asyncio.run(go())
