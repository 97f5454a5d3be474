"""The signed wrapper: made, verified, tampered with, looked at."""

import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from palermo.contract.serialization import SIGNED, Accept, Serializers
from palermo.core.message import Message
from palermo.errors import DecodeError, MediaTypeRefused, MediaTypeUnknown, SettingInvalid, SignatureInvalid
from palermo.serializers.signed import Signed
from tests.serializers.samples import sent

KEY, OTHER = b"the key of the shop", b"the key of the other"
DEFAULT = Accept.default()


def signed(value: object, *, keys: list[bytes], serializer: str = "json", compression: str = "") -> Message:
    registry, how = Serializers.default(signing_keys=keys), {"serializer": serializer, "compression": compression}
    return sent(registry.encode([value], {}, job="shop.pay", id="7", sign=True, **how))


def test_another_language_can_sign_from_the_wire_page_alone() -> None:
    parts = [b"palermo-signed-v1", b"shop.pay", b"7", b"application/json", b"[1]"]
    code = hmac.new(KEY, b"".join(len(part).to_bytes(8, "big") + part for part in parts), hashlib.sha256).hexdigest()
    body = f"v1 {code} application/json\n[1]".encode()
    message = Message(id="7", queue="jobs", job="shop.pay", body=body, content_type=SIGNED)

    assert Serializers.default(signing_keys=[KEY]).decode(message, accept=DEFAULT) == [1]
    assert signed(1, keys=[KEY]).body == body


def test_any_of_the_keys_verifies_and_the_first_signs() -> None:
    message = signed("x", keys=[KEY, OTHER])

    assert Serializers.default(signing_keys=[OTHER, KEY]).decode(message, accept=DEFAULT) == ["x"]
    with pytest.raises(SignatureInvalid, match="does not match"):
        Serializers.default(signing_keys=[OTHER]).decode(message, accept=DEFAULT)


@given(data=st.data())
def test_no_changed_byte_passes(data: st.DataObject) -> None:
    message = signed({"amount": 12}, keys=[KEY])
    at = data.draw(st.integers(0, len(message.body) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: bytes([value]).lower() != message.body[at : at + 1]))
    changed = message.body[:at] + bytes([byte]) + message.body[at + 1 :]

    with pytest.raises(DecodeError):
        Serializers.default(signing_keys=[KEY]).decode(replace(message, body=changed), accept=DEFAULT)


@pytest.mark.parametrize(
    "change",
    [
        *({"id": "8"}, {"job": "shop.refund"}, {"id": "", "job": "shop.pay7"}),
        {"body": signed(1, keys=[KEY]).body.replace(b"application/json", b"application/x-pickle")},
    ],
    ids=str,
)
def test_a_signature_is_worth_nothing_for_another_id_job_or_media_type(change: dict[str, Any]) -> None:
    message = replace(signed(1, keys=[KEY]), **change)

    with pytest.raises(SignatureInvalid):
        Serializers.default(signing_keys=[KEY]).decode(message, accept=DEFAULT.also("pickle"))


def test_what_is_inside_must_be_accepted_too() -> None:
    registry = Serializers.default(signing_keys=[KEY])
    message = signed(1, keys=[KEY], serializer="pickle")

    with pytest.raises(MediaTypeRefused, match="application/x-pickle"):
        registry.decode(message, accept=DEFAULT)
    with pytest.raises(MediaTypeRefused):
        registry.decode(message, accept=Accept.only("signed"))
    assert registry.decode(message, accept=Accept.only("signed", "pickle")) == [1]
    with pytest.raises(MediaTypeRefused, match="not decoded for display"):
        registry.decode_for_display(message)


@pytest.mark.parametrize("body", [b"[1]", b""])
def test_accept_only_signed_refuses_what_is_not_signed(body: bytes) -> None:
    registry = Serializers.default(signing_keys=[KEY])
    message = Message(id="7", queue="jobs", job="shop.pay", body=body)

    with pytest.raises(MediaTypeRefused, match="not signed, but this worker accepts only signed messages"):
        registry.decode(message, accept=Accept.only("signed"))
    with pytest.raises(DecodeError):
        registry.decode(replace(message, content_type=SIGNED), accept=Accept.only("signed"))
    assert registry.decode(signed(1, keys=[KEY]), accept=Accept.only("signed")) == [1]


def test_without_a_key_a_signed_message_is_refused_but_can_be_looked_at() -> None:
    registry = Serializers.default()
    message = signed({"a": 1}, keys=[KEY], compression="gzip")

    with pytest.raises(SignatureInvalid, match="Set signing_keys"):
        registry.decode(message, accept=DEFAULT)
    with pytest.raises(SignatureInvalid, match="Set signing_keys"):
        registry.encode([1], {}, job="shop.pay", id="7", sign=True)
    assert registry.decode_for_display(message) == [{"a": 1}]


def test_signed_in_signed_and_a_bare_body_are_refused() -> None:
    body = Signed([KEY]).wrap(b"x", content_type=SIGNED, job="shop.pay", id="7")
    message = Message(id="7", queue="jobs", job="shop.pay", body=body, content_type=SIGNED)

    with pytest.raises(MediaTypeUnknown):
        Serializers.default(signing_keys=[KEY]).decode(message, accept=DEFAULT)
    # Nor is a body without the first line a signed one.
    for bare in (b"", b"\n", b"v1  \n", b"v2 aa application/json\n[]", b"v1 aa application/json[]"):
        with pytest.raises(DecodeError, match=r"not in the signed format of docs/internals/wire\.md"):
            Signed([KEY]).unwrap(bare, job="shop.pay", id="7")


def test_a_short_key_is_refused_and_none_is_shown() -> None:
    with pytest.raises(SettingInvalid, match="signing key 2 has 6 bytes; the minimum is 16"):
        Serializers.default(signing_keys=[KEY, "secret"])
    assert "the key" not in repr(Signed([KEY])) + repr(Serializers.default(signing_keys=[KEY]))
