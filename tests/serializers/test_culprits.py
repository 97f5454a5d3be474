"""An argument that cannot be written is named by its path, with what to do instead."""

import datetime
import threading
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass

import pytest

from palermo.client.handle import Job
from palermo.contract.serialization import Serializers
from palermo.errors import EncodeError
from tests.serializers.samples import Color

REGISTRY = Serializers.default()
Point = namedtuple("Point", "x y")
LOCK = threading.Lock()


class Word(str):
    __slots__ = ()


class Zone(datetime.tzinfo):
    def utcoffset(self, moment: datetime.datetime | None) -> datetime.timedelta:
        return datetime.timedelta(hours=1)

    def dst(self, moment: datetime.datetime | None) -> None:
        return None

    def tzname(self, moment: datetime.datetime | None) -> str:
        return "here"


@dataclass
class Basket:
    owner: str
    items: list[object]


class Stubborn:
    def __reduce__(self) -> str:
        raise ZeroDivisionError("not me")


def nested(depth: int, innermost: object) -> object:
    for _ in range(depth):
        innermost = [innermost]
    return innermost


def refused(args: list[object], kwargs: dict[str, object], serializer: str) -> str:
    with pytest.raises(EncodeError) as caught:
        REGISTRY.encode(args, kwargs, job="shop.pay", id="1", serializer=serializer)
    return str(caught.value)


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ([Job("7c9e", "mail", "shop.pay")], {}, "args[0] is a Job handle, which cannot be an argument; pass its .id."),
        ([LOCK], {}, "args[0] is of type _thread.lock, which "),
        ([{"when": [1, LOCK]}], {}, 'args[0]["when"][1] is of type _thread.lock'),
        ([1], {"order": {"when": LOCK}}, 'kwargs["order"]["when"] is of type _thread.lock'),
        ([{"x": (1, LOCK)}], {"a": 1}, 'args[0]["x"][1] is of type'),
        ([], {"basket": Basket("ann", [1, object()])}, 'kwargs["basket"].items[1] is of type object'),
        ([{1, 2.5, Point}], {}, "args[0]{…} is of type type"),
        ([{(1, LOCK): 2}], {}, "args[0][(1, <unlocked _thread.lock"),
        ([Basket], {}, "args[0] is of type type"),
        ([Point(1, 2)], {}, "would be restored as a plain tuple; pass a tuple instead."),
        ([OrderedDict(a=1)], {}, "is of type collections.OrderedDict, which would be restored as a plain dict"),
        ([{"a": defaultdict(int)}], {}, 'args[0]["a"] is of type collections.defaultdict'),
        ([Word("x")], {}, "would be restored as a plain str"),
        (["ok", "\ud800"], {}, "args[1] is text with a lone surrogate, '\\ud800', which UTF-8 cannot hold"),
        ([{"\ud800": 1}], {}, 'args[0]["?"] is text with a lone surrogate'),
        ([], {"\ud800": 1}, 'kwargs["?"] is text with a lone surrogate'),
        ([datetime.datetime(2020, 1, 1, tzinfo=Zone())], {}, "args[0] has a time zone of "),
        ([{"x": 3j}], {}, 'args[0]["x"] is of type complex'),
    ],
)
def test_a_path_leads_to_the_culprit(serializer: str, args: list[object], kwargs: dict[str, object], text: str) -> None:
    assert text in refused(args, kwargs, serializer)


@pytest.mark.parametrize("serializer", ["json", "msgpack"])
def test_a_value_too_deep_or_in_itself_is_refused_and_no_recursion_error(serializer: str) -> None:
    row: list[object] = []
    row += [row, row]
    table: dict[str, object] = {}
    table["self"] = [table, (table,), {1: table}]

    values = [row, table, *(nested(depth, in_it) for depth in (100, 100_000) for in_it in (1, {}, Color.RED))]

    for value in values:
        assert "nested more than 100 levels deep, or contains itself" in refused([value], {}, serializer)


def test_pickle_names_the_culprit_too() -> None:
    assert 'args[1]["lock"][0] cannot be pickled: TypeError' in refused([1, {"lock": (LOCK,)}], {}, "pickle")
    assert 'kwargs["f"] cannot be pickled: ' in refused([1], {"f": lambda: 1}, "pickle")
    assert "args[0] cannot be pickled: ZeroDivisionError: not me" in refused([Stubborn()], {}, "pickle")
    assert "cannot be pickled: RecursionError" in refused([nested(100_000, 1)], {}, "pickle")
