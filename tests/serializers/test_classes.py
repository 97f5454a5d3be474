"""The dataclasses and enums that come back, and how they are named."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, NewType, Optional, TypedDict, TypeVar, get_type_hints

import pytest

from palermo.contract.class_hints import classes_in, dotted_name
from palermo.contract.serialization import Accept, Serializer, Serializers
from palermo.core.message import Message
from palermo.errors import DecodeError
from palermo.serializers.json import JsonSerializer
from palermo.serializers.msgpack import MsgpackSerializer
from tests.serializers.samples import Color, Line, Mode, Order, Rights, Size

T = TypeVar("T")
Number = NewType("Number", Order)
PREFIX = "tests.serializers.samples."
BOTH = pytest.mark.parametrize("serializer", [JsonSerializer(), MsgpackSerializer()], ids=["json", "msgpack"])


class Parcel(TypedDict):
    line: Line


@dataclass
class Node:
    children: "list[Node]"
    color: Color


@dataclass
class Grown:
    name: str
    added_since: int = 5


@dataclass
class Picky:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise RuntimeError("negative")


@dataclass
class Secretive:
    shown: int
    hidden: InitVar[int]
    cache: list[int] = field(init=False, default_factory=list)


@pytest.mark.parametrize(
    ("hint", "names"),
    [
        (int, ""),
        (None, ""),
        ("Order", ""),
        (T, ""),
        (Color, "Color"),
        (Optional[Color], "Color"),  # noqa: UP045
        (Color | Line | None, "Color Line"),
        (list[Line], "Line"),
        (dict[str, list[Line | None]], "Line"),
        (tuple[Size, ...], "Size"),
        (Mapping[Mode, int], "Mode"),
        (Annotated[Line, "sold"], "Line"),
        (Literal[Rights.READ], "Rights"),
        (Number, "Color Line Order Rights"),
        (Parcel, "Line"),
        (Order, "Color Line Order Rights"),
    ],
)
def test_classes_are_found_in_annotations(hint: object, names: str) -> None:
    assert sorted(classes_in([hint])) == [PREFIX + name for name in names.split()]


def test_classes_of_a_whole_signature_are_found_also_those_in_themselves() -> None:
    def job(order: Optional[list[Order]], node: Node, *, size: "Size" = Size.SMALL) -> None: ...  # noqa: UP045

    assert set(classes_in(get_type_hints(job).values()).values()) == {Order, Line, Color, Rights, Size, Node}


@BOTH
def test_a_class_that_was_neither_named_nor_registered_is_not_restored(serializer: Serializer) -> None:
    with pytest.raises(DecodeError, match=r"samples\.Color', which this job does not accept\. .*`order: Color`"):
        serializer.loads(serializer.dumps([Color.RED]), {})
    registry = Serializers.default()
    registry.register_class(Color)
    made = registry.encode([Color.RED], {}, job="x", id="1", serializer=serializer.name)
    message = Message(id="1", queue="jobs", job="x", body=made.body, content_type=made.content_type)
    assert registry.decode(message, accept=Accept.default()) == [Color.RED]


@BOTH
def test_new_fields_get_defaults_and_those_of_no_constructor_are_restored(serializer: Serializer) -> None:
    before = serializer.dumps([Grown("x")]).replace(b',"added_since":5', b"")
    order = Order(1, Color.RED)
    order.total = Decimal("9.90")

    assert serializer.loads(before, classes_in([Grown])) == [Grown("x", 5)]
    assert serializer.loads(serializer.dumps(order), classes_in([Order])) == order


@BOTH
def test_a_value_that_its_class_refuses_is_a_decode_error(serializer: Serializer) -> None:
    picky = Picky(1)
    picky.size = -1

    with pytest.raises(DecodeError, match=r"cannot become a .*Picky: RuntimeError: negative"):
        serializer.loads(serializer.dumps(picky), classes_in([Picky]))
    with pytest.raises(DecodeError, match=r"cannot become a .*Secretive: TypeError: .*hidden"):
        serializer.loads(serializer.dumps(Secretive(1, 2)), classes_in([Secretive]))


@pytest.mark.parametrize(
    "tag",
    [
        b'{"$palermo": "enum", "class": "tests.serializers.samples.Color", "value": "GREEN"}',
        b'{"$palermo": "enum", "class": "tests.serializers.samples.Color", "value": ["RED"]}',
        b'{"$palermo": "enum", "class": "tests.serializers.samples.Rights", "value": 64}',
        b'{"$palermo": "enum", "class": "tests.serializers.samples.Line", "value": "RED"}',
        b'{"$palermo": "dataclass", "class": "tests.serializers.samples.Color", "value": {}}',
        b'{"$palermo": "dataclass", "class": "tests.serializers.samples.Line", "value": {"colour": 1}}',
        b'{"$palermo": "dataclass", "class": "tests.serializers.samples.Line", "value": [1]}',
        b'{"$palermo": "dataclass", "class": "os.system", "value": {}}',
        b'{"$palermo": "dataclass", "value": {}}',
    ],
)
def test_a_tag_that_does_not_suit_the_class_is_a_decode_error(tag: bytes) -> None:
    with pytest.raises(DecodeError, match="the body has a"):
        JsonSerializer().loads(tag, classes_in([Order]))


def test_a_class_is_named_by_its_module_also_if_that_is_run(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    code = "from palermo.contract.class_hints import dotted_name\nclass Cart: ...\nprint(dotted_name(Cart))\n"
    (package / "__init__.py").write_text("")
    (package / "tasks.py").write_text(code)

    def run(*how: str) -> str:
        return subprocess.run([sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert dotted_name(Color) == "tests.serializers.samples.Color"
    assert run("-m", "shop.tasks").strip() == "shop.tasks.Cart"
    assert run("shop/tasks.py").strip() == "tasks.Cart"
    assert run("-c", code).strip() == "__main__.Cart"
