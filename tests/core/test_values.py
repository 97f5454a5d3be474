"""Dataclasses whose functions are written when they are needed: they do what the library's do."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields, replace
from typing import Any

import pytest

from palermo.core.values import dataclass, prepare


def shapes(make: Callable[..., Any]) -> dict[str, type]:
    """The same classes by the library's decorator and by ours."""

    @make(frozen=True, slots=True, kw_only=True)
    class Frozen:
        """With keywords."""

        id: str
        tags: list[str] = field(default_factory=list, compare=False)
        note: str = field(default="", repr=False)

    @make(frozen=True, slots=True)
    class Place:
        """By position."""

        row: int
        column: int = 0

        def __post_init__(self) -> None:
            if self.row < 0:
                raise ValueError("no such row")

    @make(slots=True)
    class Open:
        """Can be changed."""

        count: int = 0

    @make(frozen=True, slots=True)
    class Nothing:
        """Has no fields."""

    @make(frozen=True, eq=False)
    class Alone:
        """Equals itself alone, and has a dict."""

        name: str = ""

    @make(frozen=True, slots=True, order=True)
    class Ordered:
        """Can be sorted."""

        first: int
        second: str

    return {each.__name__: each for each in (Frozen, Place, Open, Nothing, Alone, Ordered)}


OURS, THEIRS = shapes(dataclass), shapes(dataclasses.dataclass)


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("Frozen", (), {"id": "a"}),
        ("Frozen", (), {"id": "a", "tags": ["x"], "note": "n"}),
        ("Frozen", ("a",), {}),
        ("Frozen", (), {}),
        ("Frozen", (), {"id": "a", "other": 1}),
        ("Place", (1,), {}),
        ("Place", (1, 2), {}),
        ("Place", (), {"row": 1, "column": 3}),
        ("Place", (-1,), {}),
        ("Place", (1, 2, 3), {}),
        ("Open", (), {}),
        ("Nothing", (), {}),
        ("Alone", ("x",), {}),
        ("Ordered", (1, "a"), {}),
    ],
)
def test_instances_are_made_shown_and_refused_as_by_the_library(
    name: str, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    def attempt(classes: dict[str, type]) -> object:
        try:
            made = classes[name](*args, **kwargs)
        except (TypeError, ValueError) as error:
            return type(error), str(error)
        return repr(made), [getattr(made, each.name) for each in fields(made)], replace(made) == made

    assert attempt(OURS) == attempt(THEIRS)


@pytest.mark.parametrize("classes", [OURS, THEIRS])
def test_frozen_ones_are_values(classes: dict[str, type]) -> None:
    frozen, place, nothing, alone = (classes[name] for name in ("Frozen", "Place", "Nothing", "Alone"))

    assert frozen(id="a", tags=["x"]) == frozen(id="a") != frozen(id="b")
    assert hash(place(1, 2)) == hash(place(1, 2))
    assert (place(1) == object(), nothing() == nothing(), alone() == alone()) == (False, True, False)
    assert {place(1), place(1), place(2)} == {place(2), place(1)}


@pytest.mark.parametrize("classes", [OURS, THEIRS])
def test_frozen_ones_stay_as_they_are_and_others_do_not(classes: dict[str, type]) -> None:
    place, opened = classes["Place"](1), classes["Open"]()

    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'row'"):
        place.row = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'row'"):
        del place.row
    opened.count = 5

    assert (opened, place.row) == (classes["Open"](5), 1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(opened)


@pytest.mark.parametrize("classes", [OURS, THEIRS])
def test_patterns_and_order_go_by_the_fields(classes: dict[str, type]) -> None:
    place, ordered = classes["Place"], classes["Ordered"]

    match place(1, 2):
        case place(row, column):
            assert (row, column) == (1, 2)
    assert sorted([ordered(2, "a"), ordered(1, "b"), ordered(1, "a")])[0] == ordered(1, "a")
    assert place.__match_args__ == ("row", "column")


@dataclass(frozen=True, slots=True)
class Kept:
    """At the top of a module, where pickle finds it."""

    name: str
    more: tuple[int, ...] = ()


def test_frozen_ones_can_be_copied_and_pickled() -> None:
    kept = Kept("a", (1,))

    assert copy.copy(kept) == copy.deepcopy(kept) == pickle.loads(pickle.dumps(kept)) == kept


def test_what_is_prepared_has_nothing_left_to_write() -> None:
    @dataclass(frozen=True, slots=True)
    class Ready:
        name: str

    prepare(Ready)
    written = Ready.__init__

    assert Ready("a").name == "a"
    assert Ready.__init__ is written


def test_functions_of_ones_own_are_left_alone() -> None:
    @dataclass(frozen=True, slots=True)
    class Told:
        name: str

        def __repr__(self) -> str:
            return "told"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    assert (repr(Told("a")), Told("a") == Told("b"), hash(Told("c"))) == ("told", True, 7)
