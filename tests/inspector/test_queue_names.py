"""Behind `=` a queue is called on the broker what follows; the rules for names hold there too."""

from collections.abc import Callable
from typing import Any

import pytest

from palermo.client.client import Client
from palermo.errors import QueueNameInvalid
from palermo.inspector.inspector import Inspector

#: Each of these lets somebody say a queue's name.
_DOORS: dict[str, Callable[[Inspector, Client, str], Any]] = {
    "enqueue": lambda inspector, client, queue: client.enqueue("shop.mail", ["forged"], queue=queue),
    "requeue": lambda inspector, client, queue: inspector.failed.requeue("1", queue=queue),
    "purge": lambda inspector, client, queue: inspector.queues.purge(queue),
    "delete": lambda inspector, client, queue: inspector.queues.delete(queue),
    "migrate": lambda inspector, client, queue: inspector.queues.migrate(queue, "quorum"),
    "browse": lambda inspector, client, queue: inspector.jobs.list(queue),
    "peek": lambda inspector, client, queue: inspector.jobs.peek(queue),
    "size": lambda inspector, client, queue: inspector.queues.size(queue),
    "dequeue": lambda inspector, client, queue: inspector.jobs.dequeue("shop.mail", queue=queue),
    "count": lambda inspector, client, queue: inspector.jobs.count_matching("shop.mail", queue=queue),
    "pause": lambda inspector, client, queue: inspector.queues.pause(queue),
    "resume": lambda inspector, client, queue: inspector.queues.resume(queue),
    "clear_client": lambda inspector, client, queue: inspector.tenants.clear(queue, "acme"),
    "recurring": lambda inspector, client, queue: inspector.recurring.put("forge", "shop.mail", every=1.0, queue=queue),
}


@pytest.mark.parametrize("door", _DOORS)
def test_nothing_is_done_to_a_name_that_no_queue_may_have(inspector: Inspector, client: Client, door: str) -> None:
    kept = (f"={client.settings.exchange}.~journal", "=~journal", "=amq.direct")
    for name in (*kept, f"{client.settings.exchange}.~journal", " a", "amq.a", "~a", "a" * 128, "\ud800"):
        with pytest.raises(QueueNameInvalid, match="kept for the broker and Palermo" if name in kept else None):
            _DOORS[door](inspector, client, name)

    assert [row["name"] for row in inspector.queues.list()] == ["failed"]


def test_no_job_is_enqueued_into_failed_by_its_name_on_the_broker(client: Client) -> None:
    for name in ("=failed", f"={client.settings.exchange}.failed", "=failed:mail"):
        with pytest.raises(QueueNameInvalid, match="holds failed jobs"):
            client.enqueue("shop.mail", ["forged"], queue=name)
