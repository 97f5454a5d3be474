"""The groups of a worker subscribe to events when it starts."""

from pathlib import Path

from tests.harness.rig import Rig

MODULE = "crew_events"


def test_a_worker_subscribes_its_groups_and_one_from_the_start(rig: Rig) -> None:
    rig.client.publish("tracker.a.updated", 1)
    rig.burst()
    rig.client.publish("tracker.a.updated", 2)
    rig.burst()

    told = [("audit", "1"), ("audit", "2"), ("notifications", "2")]
    assert sorted(rig.trace()) == [[group, "tracker.a.updated", number] for group, number in told]


def test_a_signed_event_is_verified_for_every_group(tmp_path: Path) -> None:
    environment = {"PALERMO_SIGNING_KEYS": "k" * 20}
    with Rig(tmp_path, module=MODULE, sign=True, signing_keys=("k" * 20,)) as rig:
        rig.burst(**environment)

        rig.client.publish("tracker.a.updated", {"n": 1})
        rig.burst("--accept-only", "signed", **environment)

        assert {line[0] for line in rig.trace()} == {"notifications", "audit"}
