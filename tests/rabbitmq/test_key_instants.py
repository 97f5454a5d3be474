"""The leader finds the keys that are due or over without looking at the others."""

from palermo.core.instants import Instants


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
