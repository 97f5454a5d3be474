"""Values come out exactly as they went in, for every serializer, compression and the signed wrapper."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palermo.contract.serialization import Accept, Serializer, Serializers
from palermo.core.arguments import unpack
from palermo.serializers.json import JsonSerializer
from palermo.serializers.msgpack import MsgpackSerializer
from palermo.serializers.pickle import PickleSerializer
from tests.serializers.samples import CLASSES, TEXT, VALUES, same, sent

KEY = b"a key of enough bytes"
SAFE = [JsonSerializer(), MsgpackSerializer()]
ALL = [*SAFE, PickleSerializer()]
REGISTRY = Serializers.default(signing_keys=[KEY])


def name(value: object) -> str:
    return getattr(value, "name", str(value))


@pytest.mark.parametrize("sign", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
@pytest.mark.parametrize("serializer", ["json", "msgpack", "pickle"])
@given(args=st.lists(VALUES, max_size=2), kwargs=st.dictionaries(TEXT, VALUES, max_size=2))
@settings(max_examples=15, deadline=None)
def test_arguments_come_back_through_all_layers(
    serializer: str, compression: str, sign: bool, args: list[object], kwargs: dict[str, object]
) -> None:
    how = {"serializer": serializer, "compression": compression, "sign": sign}
    encoded = REGISTRY.encode(args, kwargs, job="shop.pay", id="7", **how)

    value = REGISTRY.decode(sent(encoded), accept=Accept.default().also("pickle"), classes=CLASSES)

    assert same(unpack(value, encoded.arguments), (args, kwargs))


@pytest.mark.parametrize("serializer", SAFE, ids=name)
def test_odd_floats_and_whole_numbers_of_any_size_come_back(serializer: Serializer) -> None:
    odd = [math.nan, math.inf, -math.inf, -0.0]
    numbers = [sign * 3**size for size in (2_200, 20_000, 200_000) for sign in (1, -1)]

    assert str(serializer.loads(serializer.dumps(odd), {})) == "[nan, inf, -inf, -0.0]"
    assert serializer.loads(serializer.dumps(numbers), {}) == numbers


@pytest.mark.parametrize("serializer", ALL, ids=name)
def test_a_value_as_deep_as_may_be_comes_back(serializer: Serializer) -> None:
    value: object = 1
    for _ in range(50):
        value = [{"x": value}]
    deep: object = 1
    for _ in range(100):
        deep = (deep,)

    assert serializer.loads(serializer.dumps(value), {}) == value
    assert serializer.loads(serializer.dumps(deep), {}) == deep
