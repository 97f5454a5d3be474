"""The leader finds the keys that are due or over without looking at the others."""

from palermo.brokers.rabbitmq.unique.batching import KeyChanges, KnownKeys
from palermo.core.instants import Instants
from palermo.core.message import Message
from palermo.core.unique_keys import Cooldown, Key, KeyHolder, Mode, StoredMessage


def kept(name: str, due: float) -> Key:
    """A key whose job is kept until it is due, as by a debounce."""
    message = Message(id=name, job="shop.mail", queue="mail", body=b"[]")
    return Key(name=name, next=StoredMessage(message=message, call=name), due=due)


def test_names_come_at_their_instants_and_in_their_order() -> None:
    instants = Instants()
    for name, instant in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("gone", 1.5), ("moved", 1.0)):
        instants.put(name, instant)
    instants.put("gone", None)
    instants.put("moved", 5.0)

    assert instants.first == 1.0
    assert instants.until(2.0) == ["a", "b"]
    assert instants.until(2.0) == []
    assert instants.until(9.0) == ["c", "moved"]
    assert instants.first is None


def test_a_name_that_moves_very_often_takes_no_more_room() -> None:
    instants = Instants()
    instants.put("still", 7.0)
    for instant in range(20_000):
        instants.put("moving", 100.0 + instant)

    assert len(instants._heap) < 2_000
    assert instants.until(30_000.0) == ["still", "moving"]


def test_a_debounced_job_is_published_at_its_last_instant_only() -> None:
    known = KnownKeys()
    known.remember(kept("a", 10.0))
    known.remember(kept("a", 20.0))

    early = KeyChanges(known, 15.0)
    assert early.publish_due() == 20.0
    assert early.jobs == []
    due = KeyChanges(known, 20.0)
    assert due.publish_due() is None
    assert [job.id for job in due.jobs] == ["a"]


def test_a_key_is_forgotten_once_its_time_is_over() -> None:
    known = KnownKeys(serial=3)
    for key in (Key(name="a", closed=Cooldown(until=10.0, id="x")), kept("b", 99.0)):
        known.remember(key)

    KeyChanges(known, 9.0).forget()
    assert set(known.keys) == {"a", "b"}
    KeyChanges(known, 10.0).forget()
    assert set(known.keys) == {"b"}


def test_a_job_is_found_by_its_id_with_all_keys_that_it_holds() -> None:
    known = KnownKeys()
    for name in "bca":
        known.remember(held(name, "x"))
    known.remember(held("d", "y"))

    assert [key.name for key in known.held_by("x")] == ["a", "b", "c"]
    assert [key.name for key in known.held_by("y")] == ["d"]

    for name in "ab":
        known.remember(Key(name=name))
    known.remember(held("c", "y"))
    assert known.held_by("x") == []
    assert [key.name for key in known.held_by("y")] == ["c", "d"]


def held(name: str, id: str) -> Key:
    holder = KeyHolder(id=id, call=id, job="shop.mail", queue="mail", mode=Mode.DONE, since=1.0, serial=1)
    return Key(name=name, serial=1, holder=holder)
