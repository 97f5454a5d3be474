"""Finding serializers, and what a worker accepts."""

import pickle
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from palermo import serializers
from palermo.contract.plugins import Plugin
from palermo.contract.serialization import SIGNED, Accept, Compression, Serializer, Serializers
from palermo.core.message import Message
from palermo.errors import ArgumentsInvalid, DecodeError, EncodeError, MediaTypeRefused, MediaTypeUnknown, OptionInvalid


class Shout:
    """A serializer of another package."""

    name = "shout"
    media_type = "text/x-shout"
    safe = True

    def dumps(self, value: object) -> bytes:
        return repr(value).upper().encode()

    def loads(self, data: bytes, classes: Mapping[str, type]) -> object:
        return data.decode().lower()


class Detonator:
    """Unpickling one is what must never happen unasked."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('unpickled')",)


def message(body: bytes, content_type: str = "application/json") -> Message:
    return Message(id="7c9e", queue="jobs", job="shop.pay", body=body, content_type=content_type)


def test_the_shipped_ones_are_found_in_any_spelling() -> None:
    registry = Serializers.default()

    assert (registry.names(), registry.compressions()) == (["json", "msgpack", "pickle"], ["gzip", "zstd"])
    for name in ("json", "application/json", "Application/JSON; charset=utf-8", " application/json ", "JSON"):
        assert registry.get(name).name == "json"


_NO_BYTES = [(3, "returned int"), (b"", "returned an empty body")]


@pytest.mark.parametrize(("made", "said"), _NO_BYTES)
def test_one_whose_dumps_makes_no_bytes_is_named(made: object, said: str) -> None:
    class Counts(Shout):
        def dumps(self, value: object) -> Any:
            return made

    registry = Serializers.default()
    registry.register(Counts())

    with pytest.raises(EncodeError, match=f"serializer 'shout' .*{said}"):
        registry.encode((), {}, job="shop.note", id="1", serializer="shout")


def test_one_can_be_added_and_taken_away_at_run_time() -> None:
    registry = Serializers.default()

    registry.register(Shout())
    encoded = registry.encode(["hi"], {}, job="x", id="1", serializer="shout")
    assert registry.decode(message(encoded.body, encoded.content_type), accept=Accept.default()) == "['hi']"

    registry.unregister("text/x-shout")
    with pytest.raises(MediaTypeUnknown, match=r"no serializer 'text/x-shout' is registered \(there are: json, msgp"):
        registry.decode(message(encoded.body, encoded.content_type), accept=Accept.default())
    registry.unregister("pickle")
    assert registry.names() == ["json", "msgpack"]


def test_an_object_that_is_no_serializer_is_refused_when_it_is_registered() -> None:
    registry = Serializers.default()
    no_safe = SimpleNamespace(name="own", media_type="a/own", dumps=lambda value: b"", loads=lambda data, classes: 1)
    wrong = SimpleNamespace(name="My Own", media_type="own", safe="yes", dumps=b"", loads=lambda data: 1)
    compression = SimpleNamespace(name="own", decompress=lambda data, most: b"")

    with pytest.raises(OptionInvalid, match="it has no safe, which must be True"):
        registry.register(no_safe)
    with pytest.raises(OptionInvalid) as nothing:
        registry.register(cast(Serializer, object()))
    with pytest.raises(OptionInvalid) as types:
        registry.register(cast(Serializer, wrong))
    with pytest.raises(OptionInvalid, match=r"test_registry\.Shout is not a serializer: its dumps .* Give an inst"):
        registry.register(cast(Serializer, Shout))
    with pytest.raises(OptionInvalid, match="it has no compress"):
        registry.register_compression(cast(Compression, compression))

    for name in ("name", "media_type", "safe", "dumps", "loads"):
        assert f"it has no {name}, which must be " in str(nothing.value)
        assert f"its {name}" in str(types.value)
    assert (registry.names(), registry.compressions()) == (["json", "msgpack", "pickle"], ["gzip", "zstd"])


def test_what_one_registry_of_the_process_is_given_all_of_them_have() -> None:
    first, second = Serializers.of_process(), Serializers.of_process(signing_keys=["a key of 16 bytes"])

    serializers.register(Shout())
    try:
        assert {first.get("shout").name, second.get("text/x-shout").name} == {"shout"}
        assert "shout" not in Serializers.default().names()
    finally:
        serializers.unregister("shout")
    for registry in (first, second, Serializers.of_process()):
        with pytest.raises(MediaTypeUnknown, match="shout"):
            registry.get("shout")


def test_a_package_that_cannot_be_imported_does_not_take_the_others_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(group: str) -> dict[str, Plugin]:
        return {"avro": Plugin("avro", "avro_for_palermo:Avro")} if group.endswith("serializers") else {}

    monkeypatch.setattr("palermo.contract.serialization.installed", found)
    registry = Serializers.default()

    assert registry.decode(message(b"[1]"), accept=Accept.default()) == [1]
    with pytest.raises(MediaTypeUnknown, match=r"avro .* could not be imported: No module named 'avro_for_palermo'"):
        registry.get("avro")


def test_pickle_is_refused_until_accepted() -> None:
    registry = Serializers.default()
    bomb = message(pickle.dumps(Detonator()), "application/x-pickle")

    with pytest.raises(
        MediaTypeRefused, match=r"7c9e has the content type application/x-pickle, .* add --accept pickle"
    ):
        registry.decode(bomb, accept=Accept.default())
    with pytest.raises(MediaTypeRefused):
        registry.decode_for_display(bomb)
    for accept in (Accept.default().also("pickle"), Accept.only("application/x-pickle")):
        assert registry.decode(message(pickle.dumps([1]), "application/x-pickle"), accept=accept) == [1]
    for data in (b"", b"\x80", b"garbage", b"\x8e" + b"\xff" * 8, b"cno_such_module\nx\n."):
        with pytest.raises(DecodeError, match="cannot be unpickled"):
            registry.get("pickle").loads(data, {})


def test_only_takes_everything_else_away_and_a_name_must_mean_something() -> None:
    registry = Serializers.default()

    registry.check(Accept.only("signed", "JSON").also("pickle", SIGNED))
    with pytest.raises(MediaTypeUnknown, match="'piclke'"):
        registry.check(Accept.default().also("piclke"))
    with pytest.raises(
        MediaTypeRefused, match=r"accepts only application/msgpack\. If you trust the publisher, add --accept json"
    ):
        registry.decode(message(b"[1]"), accept=Accept.only("msgpack"))
    assert registry.decode(message(b"[1]"), accept=Accept.only("msgpack").also("json")) == [1]
    with pytest.raises(MediaTypeRefused, match="accepts only nothing"):
        registry.decode(message(b"[1]"), accept=Accept.only())


def test_the_body_is_what_the_kinds_of_arguments_need() -> None:
    registry = Serializers.default()

    for content_type in ("application/json", "application/x-pickle", "text/x-unheard-of"):
        assert registry.decode(message(b"", content_type), accept=Accept.default()) is None
        assert registry.decode_for_display(message(b"", content_type)) is None

    assert registry.encode([1], {"a": 2}, job="x", id="1").arguments == "both"
    assert registry.encode([1], {}, job="x", id="1").body == b"[1]"
    assert registry.encode([], {"a": 2}, job="x", id="1").body == b'{"a":2}'
    assert registry.encode([[1, 2]], {}, job="x", id="1", one=True).body == b"[1,2]"
    assert registry.encode([], {"event": {"a": 1}}, job="x", id="1", one=True).body == b'{"a":1}'
    with pytest.raises(ArgumentsInvalid, match=r"got 2 arguments\. Pass exactly one"):
        registry.encode([1], {"a": 2}, job="x", id="1", one=True)
