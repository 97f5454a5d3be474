"""Events as users have them: worker processes of several groups, on every broker."""

from collections import Counter
from pathlib import Path

import pytest

from tests.harness.rig import Rig
from tests.helpers import eventually

MODULE = "crew_events"


def seen(rig: Rig) -> Counter[tuple[str, ...]]:
    return Counter(tuple(line) for line in rig.trace())


@pytest.mark.slow
def test_each_group_handles_each_event_once_and_gets_what_it_missed(any_rig: Rig) -> None:
    rig = any_rig
    publish = rig.client.publish
    publish("tracker.artifact.created", 0)  # before anyone subscribes: for who begins from the start
    workers = [rig.idle("-c", "2") for _ in range(2)]

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
    eventually(lambda: not any(row["pending"] + row["in_progress"] for row in rig.inspector.queues.list()))
    for worker in workers:
        worker.end()

    publish("tracker.artifact.updated", "missed")
    publish("tracker.broken", "x")
    log = rig.burst()

    assert seen(rig)["notifications", "tracker.artifact.updated", "'missed'"] == 1
    assert seen(rig)["flaky", "tracker.broken", "'x'"] == 2, log
    assert all(f"id={id}@notifications" in workers[0].log + workers[1].log for id in ids)
    assert "subscribed group=audit topics=tracker.#" in log
    (failed,) = rig.inspector.failed.list(limit=10)
    prefix = rig.settings.prefix
    assert (failed["job"], failed["queue"], failed["retries"]) == ("flaky", f"{prefix}_flaky", 1)
    assert failed["error"]["message"] == "cannot do x"

    assert seen(rig)["audit", "tracker.broken", "'x'"] == 1

    rows = {row["group"]: row for row in rig.inspector.events.groups()}
    assert list(rows) == ["audit", "flaky", "notifications"]
    assert rows["flaky"]["topics"] == ["tracker.broken", "tracker.hurt"]
    assert (rows["audit"]["function"], rows["audit"]["pending"]) == (f"{MODULE}.Audit", 0)


def test_a_signed_event_is_verified_for_every_group(tmp_path: Path) -> None:
    environment = {"PALERMO_SIGNING_KEYS": "k" * 20}
    with Rig(tmp_path, module=MODULE, sign=True, signing_keys=("k" * 20,)) as rig:
        rig.burst(**environment)

        rig.client.publish("tracker.a.updated", {"n": 1})
        rig.burst("--accept-only", "signed", **environment)

        assert {line[0] for line in rig.trace()} == {"notifications", "audit"}
