"""Arguments are checked against the job's signature, which is that of `process` for a class."""

import sys
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest

import palermo
from palermo.errors import ArgumentsInvalid, UsageError

if TYPE_CHECKING:
    from decimal import Decimal


class Colour(Enum):
    RED = 1


@dataclass
class Size:
    width: int
    colour: Colour


@dataclass
class Receipt:
    pages: int


@palermo.job
def resize(path: str, /, width: int = 640, *rest: int, crop: bool, **more: Any) -> None: ...


@palermo.job(name="binding.mail")
class SendMail:
    def process(self, to: str, *, subject: str = "hi") -> None: ...


@palermo.job(arguments="one", name="binding.one")
def take(event: Any) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "what"),
    [
        ([], {"crop": True}, "missing a required argument: 'path'"),
        (["x"], {}, "missing a required.* argument: 'crop'"),
        (["x", 1], {"crop": True, "width": 1}, "multiple values for argument 'width'"),
    ],
)
def test_arguments_that_do_not_fit_get_the_signature(args: list[Any], kwargs: dict[str, Any], what: str) -> None:
    for fits in (
        (["x"], {"crop": True}),
        (["x", 3, 4, 5], {"crop": True}),
        (["x"], {"crop": 0, "width": 3, "else": 1}),
    ):
        resize.definition.bind(*fits)

    signature = (
        r"Its parameters are \(path: str, /, width: int = 640, \*rest: int, crop: bool, \*\*more: Any\) -> None\.$"
    )
    with pytest.raises(ArgumentsInvalid, match=rf"resize': {what}\. {signature}"):
        resize.definition.bind(args, kwargs)


def test_wrong_arguments_are_refused_before_any_broker_is_asked() -> None:
    of_process = SendMail.definition  # type: ignore[attr-defined]
    of_process.bind(["a@b.c"], {"subject": "hello"})
    take.definition.bind([{"any": "thing"}], {})

    for args, kwargs in (([], {}), (["a", "b"], {}), (["a"], {"body": 1}), (["a"], {"self": 1})):
        with pytest.raises(ArgumentsInvalid, match=r"Its parameters are \(to: str, \*, subject: str = 'hi'\)"):
            of_process.bind(args, kwargs)
    for args, kwargs in (([], {}), ([1, 2], {}), ([], {"event": 1})):
        with pytest.raises(ArgumentsInvalid):
            take.definition.bind(args, kwargs)
    with pytest.raises(UsageError, match=r"unexpected keyword argument 'colour'.* go to \.options"):
        SendMail.enqueue("a@b.c", colour="red")  # type: ignore[attr-defined]


def test_the_annotations_name_the_classes_that_may_be_restored() -> None:
    @palermo.job
    def paint(sizes: list[Size], price: "Decimal | None" = None) -> Receipt: ...  # type: ignore[empty-body]

    found = set(paint.definition.classes.values())
    assert Size in found
    assert found <= {Size, Colour}, "what a job returns is not restored"


def test_an_annotation_may_name_what_only_the_type_checker_knows() -> None:
    # From Python 3.14 on without quotes.
    quote = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
    space: dict[str, Any] = {"__name__": __name__, "Size": Size}
    exec(f"{quote}def paint(price: Money, size: Size | None = None) -> Money: ...", space)
    exec(f"{quote}def pause(attempt: int, error: Trouble) -> Length: ...", space)
    exec(f"{quote}class Paint:\n    def process(self, price: Money) -> None: ...", space)

    paint = palermo.job(name="binding.priced", backoff=space["pause"])(space["paint"])
    in_class = palermo.job(name="binding.priced_in_class")(space["Paint"])

    paint.definition.bind([1], {"size": None})
    in_class.definition.bind([1], {})
    assert set(paint.definition.classes.values()) <= {Size, Colour}
    with pytest.raises(ArgumentsInvalid, match=r"Its parameters are .*price.*Money"):
        paint.definition.bind([], {})
