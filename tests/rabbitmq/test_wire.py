"""Messages in pika's terms."""

import json
import pickle
import struct
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pika import exceptions, spec

from palermo.brokers.rabbitmq.amqp import fields, messages, replies
from palermo.brokers.rabbitmq.amqp.frames import Delivered
from palermo.brokers.rabbitmq.amqp.messages import Properties, message_of, to_message, to_properties, written
from palermo.contract.rows import job_row
from palermo.contract.serialization import Serializers
from palermo.core.failure import from_exception
from palermo.core.lifecycle import JobState, fail, requeue, retry
from palermo.core.message import KNOWN_HEADERS, headers_size
from palermo.core.unique_keys import message_from_plain, message_to_plain
from palermo.errors import BrokerRefused, BrokerUnavailable, PalermoError
from palermo.worker.ipc.frames import fields_of, pack
from tests import hostile
from tests.core.test_message import a_message, values


@given(
    names=st.sets(
        st.sampled_from(["content_encoding", "priority", "correlation_id", "reply_to", "expiration", "type"])
    ),
    headers=st.none() | st.dictionaries(st.text(max_size=20), values, max_size=3),
    id=st.none() | st.text("abc-é", min_size=1, max_size=40),
)
def test_a_message_is_known_by_its_id_unread(names: set[str], headers: dict[str, Any] | None, id: str | None) -> None:
    given_values = {name: 7 if name == "priority" else f"a {name}" for name in names}
    properties = Properties(message_id=id, headers=headers, delivery_mode=2, **given_values)
    data = b"before" + b"".join(properties.encode())
    message = messages.unread(Delivered(len(data), 1, False, "", "", len(b"before"), b""), data)

    assert message.may_have({(id or "none").encode()})
    assert message.may_have({b"another"}) is (id is None)
    assert message.properties.message_id == id


@given(headers=st.dictionaries(st.text(max_size=20), values, max_size=6))
def test_headers_come_back_as_they_were_and_are_no_larger_than_counted(headers: dict[str, Any]) -> None:
    written = fields.write_table(headers)

    assert len(written) <= headers_size(headers)
    assert fields.read_table(written, 0) == (headers, len(written))


@given(headers=st.dictionaries(st.text(max_size=20), values, max_size=6))
def test_properties_come_back_as_they_were(headers: dict[str, Any]) -> None:
    properties = Properties(headers=headers, message_id="é", priority=9, timestamp=2**40, expiration="5", user_id="u")

    again = Properties().decode(b"".join(properties.encode()))

    assert vars(again) == vars(properties)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"T" + (1_760_000_000_000).to_bytes(8, "big"), 1_760_000_000_000),
        (b"d" + struct.pack(">d", 1_700_000_000.25), 1_700_000_000.25),
        (b"f" + struct.pack(">f", 0.5), 0.5),
        (b"S\x00\x00\x00\x01\xff", b"\xff"),
        (b"u\x00\x07", 7),
        (b"s\xff\xff", -1),
        (b"b\xff", -1),
        (b"i\xff\xff\xff\xff", 2**32 - 1),
        (b"D\x02\x00\x00\x00\x96", Decimal("1.50")),
    ],
)
def test_every_type_another_client_may_send_is_read(field: bytes, value: object) -> None:
    assert fields.read_value(field, 0) == (value, len(field))


@pytest.mark.parametrize("value", [object(), 2**64, float("inf"), float("nan"), {"x" * 300: 1}])
def test_what_amqp_cannot_carry_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"header|AMQP"):
        fields.write_value(value)


def test_a_decimal_too_long_for_amqp_travels_as_text() -> None:
    assert fields.read_value(fields.write_value(Decimal("12345678901.5")), 0)[0] == "12345678901.5"


def test_other_properties_travel_with_the_job_unless_they_would_harm_it() -> None:
    kept = {"priority": 3, "correlation_id": "c", "reply_to": "r", "type": "t", "app_id": "a", "timestamp": 5}
    of_a_job, dropped = (
        {"message_id": "7c9e", "headers": {"job-class": "a.b"}},
        {"expiration": "10", "user_id": "guest"},
    )
    properties = spec.BasicProperties(**of_a_job, **dropped, **kept)

    again = to_properties(to_message(properties, b"", taken_from="mail"))

    assert {name: getattr(again, name) for name in kept} == kept
    assert (again.expiration, again.user_id, again.delivery_mode) == (None, None, 2)


def test_a_message_without_properties_or_headers_is_a_message() -> None:
    message = to_message(spec.BasicProperties(), b"x", taken_from="mail")

    assert (message.job, message.queue, message.content_type, message.defect) == ("", "mail", "application/json", "")
    assert len(message.id) == 36


texts = st.sampled_from(["", "both", "é" * 20])
seconds = st.none() | st.floats(min_value=0.001, max_value=2e9)
writable = st.fixed_dictionaries(
    {
        "preview": st.none() | st.text(st.characters(codec="utf-8"), max_size=100),
        "retries": st.none() | st.integers(0, 99),
        "keep_result": st.none() | st.booleans(),
        "extra": st.sampled_from([{}, {"my-own": 1}]),
        "properties": st.just({}) | st.fixed_dictionaries({"priority": st.integers(0, 9)}),
        "worker": texts.map(lambda text: text or None),
        **dict.fromkeys(("timeout", "queued_at"), seconds),
        **dict.fromkeys(("arguments", "tenant", "job", "content_encoding"), texts),
    }
)


@given(writable)
def test_what_is_written_at_once_says_the_same_as_pikas_properties(fields: dict[str, Any]) -> None:
    message = a_message(**fields)

    at_once = Properties().decode(written(message))

    assert vars(at_once) == vars(Properties().decode(b"".join(to_properties(message).encode())))


def every_pika_error() -> list[type[BaseException]]:
    found = [value for value in vars(exceptions).values() if isinstance(value, type) and issubclass(value, Exception)]
    return sorted(found, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", every_pika_error())
def test_every_pika_error_is_mapped(kind: type[BaseException]) -> None:
    for arguments in [(), (403, "ACCESS_REFUSED - no"), ([],), ("tag",), ("a", "b", "c")]:
        try:
            error = kind(*arguments)
        except TypeError:
            continue
        said = replies.translate(error, "h:5672", user="u", vhost="v")
        assert isinstance(said, PalermoError)
        assert "h:5672" in str(said)
        return
    raise AssertionError(f"no way to make a {kind}")


_CONNECTION, _CHANNEL = exceptions.ConnectionClosedByBroker, exceptions.ChannelClosedByBroker
_LOGIN, _VHOST = exceptions.ProbableAuthenticationError, exceptions.ProbableAccessDeniedError
_REFUSED = "NOT_ALLOWED - access to vhost 'v' refused for user 'u'"
_LIMIT = f"{_REFUSED}: connection limit (1) is reached"
_NO_REPLICA = "PRECONDITION_FAILED - stream queue 'x' does not have a running replica on the local node"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (ConnectionRefusedError(111, "refused"), BrokerUnavailable, "h:5672"),
        (TimeoutError(), BrokerUnavailable, "in time"),
        (OSError(113, "No route to host"), BrokerUnavailable, "No route"),
        (_CONNECTION(403, "ACCESS_REFUSED - x"), BrokerRefused, "password"),
        (_CONNECTION(530, "NOT_ALLOWED - vhost v not found"), BrokerRefused, "virtual host 'v'"),
        (_CONNECTION(530, "NOT_ALLOWED - attempt to reuse consumer tag 'x'"), BrokerUnavailable, "reuse consumer tag"),
        (_CONNECTION(320, "CONNECTION_FORCED - bye"), BrokerUnavailable, "bye"),
        (_CHANNEL(403, "ACCESS_REFUSED - access to queue"), BrokerRefused, "permission"),
        (_CHANNEL(406, _NO_REPLICA), BrokerUnavailable, "may still be starting"),
        (_LOGIN("ConnectionClosedByBroker: (403) 'ACCESS_REFUSED - x'"), BrokerRefused, "password"),
        (_LOGIN("StreamLostError: ('the broker closed the connection',)"), BrokerUnavailable, "may be stopping"),
        (_VHOST(repr(_CONNECTION(530, "NOT_ALLOWED - vhost v not found"))), BrokerRefused, "rabbitmqctl add_vhost v"),
        (_VHOST(repr(_CONNECTION(530, _REFUSED))), BrokerRefused, "rabbitmqctl set_permissions -p v u"),
        (_VHOST(repr(_CONNECTION(530, _LIMIT))), BrokerUnavailable, "connection limit (1)"),
        (_VHOST("ConnectionClosedByBroker: (320) 'CONNECTION_FORCED - bye'"), BrokerUnavailable, "may be stopping"),
        (struct.error("odd"), PalermoError, "odd"),
    ],
)
def test_an_error_says_what_happened_and_where(error: BaseException, kind: type, said: str) -> None:
    translated = replies.translate(error, "h:5672", user="u", vhost="v")

    assert isinstance(translated, kind)
    assert said in str(translated)


#: Headers that are not published again.
_LEFT_OUT = {"CC", "BCC", "x-death", "x-first-death-queue", "x-delivery-count"}


@given(st.randoms(use_true_random=False))
def test_whatever_the_broker_delivers_is_read_and_written_again(random: Random) -> None:
    data = hostile.any_properties(random)

    message = message_of(messages.read_properties(data, 0), b"[]", taken_from="jobs")

    pickle.loads(pack(("run", fields_of(message)))[4:])
    json.dumps(job_row(message, JobState.PENDING, Serializers()), ensure_ascii=False).encode()
    failure = from_exception(ValueError("no"), failed_at=1)
    for copy in (
        replace(message, run_at=5.0),
        fail(message, failure, worker="w"),
        retry(message, failure, worker="w", now=5.0, delay=5.0),
        requeue(fail(message, failure, worker="w")),
        message_from_plain(json.loads(json.dumps(message_to_plain(message)))),
    ):
        data = written(copy)
        assert len(data) <= messages.MAX_PROPERTIES
        again = message_of(messages.read_properties(data, 0), b"[]", taken_from="jobs")
        assert again.id == copy.id
        travelling = {name for name in copy.extra if name not in KNOWN_HEADERS and name not in _LEFT_OUT}
        assert travelling <= again.extra.keys() or "dropped-headers" in again.extra
        for name in (travelling & again.extra.keys()) - {"dropped-headers"}:
            assert again.extra[name] == copy.extra[name]
