"""Events as users have them: worker processes of several groups, on every broker."""

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from palermo.client.client import Client
from palermo.core.address import parse_url
from palermo.inspector.inspector import Inspector
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.tcp_proxy import TcpProxy

MODULE = "crew_events"


def patient(rig: Rig, **more: Any) -> Client:
    """A client that waits for streams to be made, on a machine that does much else."""
    client = Client(replace(rig.settings, publish_timeout=30.0, **more))
    rig.client.close()
    rig.client, rig.inspector = client, Inspector(client)
    return client


def seen(rig: Rig) -> Counter[tuple[str, ...]]:
    return Counter(tuple(line) for line in rig.trace())


def test_each_group_handles_each_event_once_and_gets_what_it_missed(any_rig: Rig) -> None:
    rig = any_rig
    publish = patient(rig).publish
    publish("tracker.artifact.created", 0)  # before anyone subscribes: for who begins from the start
    workers = [rig.worker("-c", "2", modules=(MODULE,)) for _ in range(2)]
    for worker in workers:
        rig.ready(worker)

    ids = [publish("tracker.artifact.updated", number) for number in range(10)]
    publish("tracker.artifact.deleted")

    updated = [("tracker.artifact.updated", str(number)) for number in range(10)]
    others = [("tracker.artifact.created", "0"), ("tracker.artifact.deleted", "None")]
    told = Counter([("notifications", *each) for each in updated] + [("audit", *each) for each in (*updated, *others)])

    def each_once() -> bool:
        assert seen(rig) == told
        return True

    eventually(each_once)
    # A job that is killed before it is acknowledged runs again.
    eventually(lambda: not any(row["pending"] + row["in_progress"] for row in rig.inspector.queues()))
    for worker in workers:
        worker.end()

    publish("tracker.artifact.updated", "missed")
    publish("tracker.broken", "x")
    log = rig.burst(modules=(MODULE,))

    assert seen(rig)["notifications", "tracker.artifact.updated", "'missed'"] == 1
    assert seen(rig)["flaky", "tracker.broken", "'x'"] == 2, log
    assert all(f"id={id}@notifications" in workers[0].log + workers[1].log for id in ids)
    assert "subscribed group=audit topics=tracker.#" in log
    (failed,) = rig.inspector.failed(limit=10)
    prefix = rig.settings.prefix
    assert (failed["job"], failed["queue"], failed["retries"]) == ("flaky", f"{prefix}_flaky", 1)
    assert failed["error"]["message"] == "cannot do x"

    rig.inspector.requeue(failed["id"])
    rig.burst(modules=(MODULE,))

    assert seen(rig)["flaky", "tracker.broken", "'x'"] == 4
    assert seen(rig)["audit", "tracker.broken", "'x'"] == 1
    assert rig.inspector.replay("notifications", topic="tracker.artifact.deleted") == 1
    rig.burst(modules=(MODULE,))
    assert seen(rig)["notifications", "tracker.artifact.deleted", "None"] == 1
    assert seen(rig)["audit", "tracker.artifact.deleted", "None"] == 1

    rows = {row["group"]: row for row in rig.inspector.topics()}
    assert list(rows) == ["audit", "flaky", "notifications"]
    assert rows["flaky"]["topics"] == ["tracker.broken", "tracker.hurt"]
    assert (rows["audit"]["function"], rows["audit"]["pending"]) == (f"{MODULE}.Audit", 0)


def test_a_signed_event_is_verified_for_every_group(tmp_path: Path) -> None:
    keys = {"signing_keys": ("k" * 20,)}
    rig = Rig(tmp_path, sign=True, **keys)
    environment = {"PALERMO_SIGNING_KEYS": "k" * 20}
    rig.burst(modules=(MODULE,), **environment)

    rig.client.publish("tracker.a.updated", {"n": 1})
    rig.burst("--accept-only", "signed", modules=(MODULE,), **environment)

    assert {line[0] for line in rig.trace()} == {"notifications", "audit"}
    rig.close()


def test_a_group_whose_line_was_cut_gets_what_it_missed(tmp_path: Path, rabbitmq_url: str, exchange: str) -> None:
    there = Rig(tmp_path, url=rabbitmq_url, exchange=exchange)
    with TcpProxy(*parse_url(rabbitmq_url).hosts[0]) as proxy, closing(there) as rig:
        address = parse_url(rabbitmq_url)
        vhost = "%2F" if address.vhost == "/" else address.vhost
        through = f"amqp://{address.username}:{address.password}@127.0.0.1:{proxy.port}/{vhost}"
        worker = rig.worker(modules=(MODULE,), PALERMO_URL=through)
        rig.ready(worker)
        proxy.refuse()
        proxy.hang_up()
        eventually(lambda: "connection lost" in worker.log)

        patient(rig).publish("tracker.artifact.updated", "meanwhile")
        proxy.listen()

        eventually(lambda: seen(rig)["notifications", "tracker.artifact.updated", "'meanwhile'"] == 1)
        rig.client.publish("tracker.artifact.updated", "after")
        eventually(lambda: seen(rig)["notifications", "tracker.artifact.updated", "'after'"] == 1)
