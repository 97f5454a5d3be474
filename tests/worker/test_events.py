"""Events as users have them: worker processes of several groups, on every broker."""

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from palermo.client.client import Client
from palermo.core.address import parse_url
from palermo.errors import NoSubscriber
from palermo.inspector.inspector import Inspector
from tests.helpers import eventually
from tests.tcp_proxy import TcpProxy
from tests.worker.site import Site

MODULE = "crew_events"


def patient(site: Site, **more: Any) -> Client:
    """A client that waits for streams to be made, on a machine that does much else."""
    client = Client(replace(site.settings, publish_timeout=30.0, **more))
    site.client.close()
    site.client, site.inspector = client, Inspector(client)
    return client


def seen(site: Site) -> Counter[tuple[str, ...]]:
    return Counter(tuple(line) for line in site.trace())


def test_t1_t3_t4_t6_each_group_handles_each_event_once_and_gets_what_it_missed(any_site: Site) -> None:
    site = any_site
    publish = patient(site).publish
    publish("tracker.artifact.created", 0)  # before anyone subscribes: for who begins from the start
    workers = [site.start("-c", "2", modules=(MODULE,)) for _ in range(2)]
    for worker in workers:
        site.ready(worker)

    ids = [publish("tracker.artifact.updated", number) for number in range(10)]
    publish("tracker.artifact.deleted")

    updated = [("tracker.artifact.updated", str(number)) for number in range(10)]
    others = [("tracker.artifact.created", "0"), ("tracker.artifact.deleted", "None")]
    told = Counter([("notifications", *each) for each in updated] + [("audit", *each) for each in (*updated, *others)])

    def each_once() -> bool:
        assert seen(site) == told
        return True

    eventually(each_once)
    # A job that is killed before it is acknowledged runs again.
    eventually(lambda: not any(row["pending"] + row["in_progress"] for row in site.inspector.queues()))
    for worker in workers:
        worker.end()

    publish("tracker.artifact.updated", "missed")
    publish("tracker.broken", "x")
    log = site.burst(modules=(MODULE,))

    assert seen(site)["notifications", "tracker.artifact.updated", "'missed'"] == 1
    assert seen(site)["flaky", "tracker.broken", "'x'"] == 2, log
    assert all(f"id={id}@notifications" in workers[0].log + workers[1].log for id in ids)
    assert "subscribed group=audit topics=tracker.#" in log
    (failed,) = site.inspector.failed(limit=10)
    prefix = site.settings.prefix
    assert (failed["job"], failed["queue"], failed["retries"]) == ("flaky", f"{prefix}_flaky", 1)
    assert failed["error"]["message"] == "cannot do x"

    site.inspector.requeue(failed["id"])
    site.burst(modules=(MODULE,))

    assert seen(site)["flaky", "tracker.broken", "'x'"] == 4
    assert seen(site)["audit", "tracker.broken", "'x'"] == 1
    assert site.inspector.replay("notifications", topic="tracker.artifact.deleted") == 1
    site.burst(modules=(MODULE,))
    assert seen(site)["notifications", "tracker.artifact.deleted", "None"] == 1
    assert seen(site)["audit", "tracker.artifact.deleted", "None"] == 1

    rows = {row["group"]: row for row in site.inspector.topics()}
    assert list(rows) == ["audit", "flaky", "notifications"]
    assert rows["flaky"]["topics"] == ["tracker.broken", "tracker.hurt"]
    assert (rows["audit"]["function"], rows["audit"]["pending"]) == (f"{MODULE}.Audit", 0)


def test_t5_an_event_that_nobody_wants_is_refused_where_settings_say_so(any_site: Site) -> None:
    site = any_site
    strict = patient(site, events_unsubscribed="refuse")

    with pytest.raises(NoSubscriber, match=r"'tracker\.x'"):
        strict.publish("tracker.x")


def test_a_signed_event_is_verified_for_every_group(tmp_path: Path) -> None:
    keys = {"signing_keys": ("k" * 20,)}
    site = Site(tmp_path, sign=True, **keys)
    environment = {"PALERMO_SIGNING_KEYS": "k" * 20}
    site.burst(modules=(MODULE,), **environment)

    site.client.publish("tracker.a.updated", {"n": 1})
    site.burst("--accept-only", "signed", modules=(MODULE,), **environment)

    assert {line[0] for line in site.trace()} == {"notifications", "audit"}
    site.close()


def test_t7_a_group_whose_line_was_cut_subscribes_again_and_gets_what_it_missed(
    tmp_path: Path, rabbitmq_url: str, exchange: str
) -> None:
    there = Site(tmp_path, url=rabbitmq_url, exchange=exchange)
    with TcpProxy(*parse_url(rabbitmq_url).hosts[0]) as proxy, closing(there) as site:
        address = parse_url(rabbitmq_url)
        vhost = "%2F" if address.vhost == "/" else address.vhost
        through = f"amqp://{address.username}:{address.password}@127.0.0.1:{proxy.port}/{vhost}"
        worker = site.start(modules=(MODULE,), PALERMO_URL=through)
        site.ready(worker)
        proxy.refuse()
        proxy.hang_up()
        eventually(lambda: "connection lost" in worker.log)

        patient(site).publish("tracker.artifact.updated", "meanwhile")
        proxy.listen()

        eventually(lambda: seen(site)["notifications", "tracker.artifact.updated", "'meanwhile'"] == 1)
        site.client.publish("tracker.artifact.updated", "after")
        eventually(lambda: seen(site)["notifications", "tracker.artifact.updated", "'after'"] == 1)
