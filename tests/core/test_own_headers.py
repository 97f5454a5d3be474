"""Headers of one's own: which names and values can travel with a job."""

import re
from pathlib import Path

import pytest

from palermo.core.own_headers import MAX_OWN_HEADERS, check_own_headers, is_reserved, own_headers
from palermo.errors import OptionInvalid

ROOT = Path(__file__).parents[2]


def test_text_numbers_and_bools_travel_and_only_they_are_shown() -> None:
    given = {"request-id": "ü", "X-Shard": 7, "weight": 0.5, "trial": True, "most": 2**63 - 1}

    assert check_own_headers(given) == given
    assert own_headers({"parent-id": "p", "x-death": [], "traceparent": "0", **given}) == given


_USED = ("queue", "Tenant", "parent-id", "tick", "limit", "unique", "x-death", "X-Death", "CC")


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        *(({name: "x"}, f"header '{name}' is reserved for Palermo or RabbitMQ") for name in _USED),
        *(({name: "x"}, "must be 1 to 128 bytes of printable text") for name in ("", "a\n", "n" * 129, 7)),
        *(
            ({"x": value}, r"header 'x' is .*; give text, a number or a bool")
            for value in (None, b"x", ["x"], {"a": 1}, float("nan"), 2**63)
        ),
        ({f"header-{number}": "x" * 100 for number in range(20)}, f"the maximum is {MAX_OWN_HEADERS:,}"),
        ("request-id=7", "is not a dict"),
    ],
)
def test_headers_that_cannot_travel_are_refused(headers: object, told: str) -> None:
    with pytest.raises(OptionInvalid, match=told):
        check_own_headers(headers)


def test_every_header_of_the_wire_format_is_refused() -> None:
    wire = (ROOT / "docs" / "internals" / "wire.md").read_text()
    rows = re.findall(r"^\| .*?headers? ((?:`[a-z_-]+`(?:, )?)+) \|", wire, re.MULTILINE)
    failed = re.findall(r"^\| `([a-z-]+)` \|", wire[wire.index("## A failed job") :], re.MULTILINE)
    documented = {*failed, *(name for row in rows for name in re.findall(r"`([a-z_-]+)`", row))}

    assert {"tenant", "recurring", "unique-linger", "traceparent", "stack-trace"} <= documented
    assert {name for name in documented if not is_reserved(name)} == set()
