"""Contract: what is published is what arrives."""

import asyncio
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palermo.contract.broker import Broker
from palermo.core.lifecycle import Ack
from palermo.core.message import KNOWN_HEADERS, Message
from palermo.errors import BrokerUnavailable
from tests.contract.tools import Open, consume, counts, ids, message, messages, take, take_and_ack, until

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
NAMES = TEXT.filter(lambda name: 0 < len(name.encode()) <= 100)

#: What an AMQP field table holds exactly; a broker may hold more.
HEADER_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.binary(max_size=40)
    | st.decimals(-20_000_000, 20_000_000, places=2, allow_nan=False)
    | st.datetimes(datetime(1970, 1, 2), datetime(2100, 1, 1)).map(lambda at: at.replace(microsecond=0, tzinfo=UTC)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=10,
)
#: Headers that mean something to Palermo or a broker, so that not any value comes back as an unknown one.
KNOWN = KNOWN_HEADERS | {"CC", "BCC", "dropped-headers", "perform_job_at"}
HEADERS = st.dictionaries(
    NAMES.filter(lambda name: name not in KNOWN and not name.startswith("x-")), HEADER_VALUES, max_size=5
)
MESSAGES = st.builds(
    message,
    id=NAMES,
    job=TEXT,
    body=st.binary(max_size=200),
    content_type=st.sampled_from(["application/json", "application/msgpack", "application/json; charset=utf-8"]),
    content_encoding=st.sampled_from(["", "gzip"]),
    arguments=st.sampled_from(["", "both"]),
    created_at=st.none() | st.integers(0, 2**40),
    retries=st.none() | st.integers(0, 1000),
    policy_retries=st.none() | st.integers(0, 1000),
    preview=st.none() | TEXT,
    extra=HEADERS,
)


def same(found: Message, sent: Message) -> bool:
    """Equal, and numbers of the same kind: to Python 1, 1.0, True and Decimal(1) are one."""
    return found == sent and kinds(found.extra) == kinds(sent.extra)


def kinds(value: Any) -> Any:
    if isinstance(value, list):
        return [kinds(item) for item in value]
    if isinstance(value, str | bytes | int | float | Decimal | datetime) or value is None:
        return type(value)
    return {name: kinds(item) for name, item in value.items()}


class PublishingContract:
    async def test_a_published_message_arrives_equal(self, broker: Broker) -> None:
        sent = message(
            "7c9e", body=b'{"args": [1], "kwargs": {"a": "\xc3\xbc"}}', content_type="application/msgpack",
            content_encoding="gzip", arguments="both", created_at=1_700_000_000, retries=2, policy_retries=1,
            preview="1, a='ü'", properties={"priority": 3, "correlation_id": "c-1", "reply_to": "answers"},
            extra={"region": "acme"},
        )  # fmt: skip

        await broker.publish(sent)
        delivery = await take(await consume(broker))

        assert delivery.message == sent
        assert delivery.slot == 1
        assert not delivery.redelivered

    @settings(
        max_examples=60,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(sent=MESSAGES)
    def test_unknown_headers_survive(self, runner: asyncio.Runner, broker: Broker, sent: Message) -> None:
        async def there_and_back() -> Message:
            consumer = await consume(broker)
            await broker.publish(sent)
            found = await take_and_ack(consumer)
            await consumer.close()
            return found

        assert same(runner.run(there_and_back()), sent)

    async def test_a_known_header_of_the_wrong_type_is_kept_and_named(self, broker: Broker) -> None:
        await broker.publish(message(extra={"retries": "many"}))

        found = (await take(await consume(broker))).message

        assert found.retries is None
        assert found.extra["retries"] == "many"
        assert "'retries'" in found.defect

    async def test_headers_of_a_dead_letter_are_not_published_again(self, broker: Broker) -> None:
        await broker.publish(message(extra={"x-death": [{"count": 1}], "x-first-death-queue": "q", "kept": 1}))

        assert (await take(await consume(broker))).message.extra == {"kept": 1}

    @pytest.mark.parametrize("body", [b"", b"\x00\xff" * 10, b"x" * 3_000_000], ids=["empty", "binary", "3 MB"])
    async def test_a_body_of_any_size_and_content_arrives(self, broker: Broker, body: bytes) -> None:
        await broker.publish(message(body=body))

        assert (await take(await consume(broker))).message.body == body

    async def test_a_queue_is_made_by_publishing_to_it(self, broker: Broker) -> None:
        assert await counts(broker, "brand new.ü") is None

        await broker.publish(message(queue="brand new.ü"))

        await until(lambda: counts(broker, "brand new.ü"), (1, 0))

    async def test_jobs_arrive_in_the_order_of_publishing(self, broker: Broker) -> None:
        for sent in messages(50):
            await broker.publish(sent)
        consumer = await consume(broker)

        assert [(await take_and_ack(consumer)).id for _ in range(50)] == [f"jobs-{number}" for number in range(50)]

    async def test_five_thousand_published_at_once_keep_their_order(self, broker: Broker) -> None:
        assert await broker.publish_many(iter(messages(5_000))) == 5_000

        await until(lambda: counts(broker), (5_000, 0))
        assert await ids(broker) == [f"jobs-{number}" for number in range(5_000)]

    async def test_many_published_at_once_may_go_to_several_queues(self, broker: Broker) -> None:
        assert await broker.publish_many([*messages(3, "a"), *messages(2, "b")]) == 5
        assert await broker.publish_many([]) == 0

        await until(lambda: counts(broker, "a"), (3, 0))
        await until(lambda: counts(broker, "b"), (2, 0))

    async def test_two_exchanges_do_not_mix(self, broker: Broker, elsewhere: Open) -> None:
        other = await elsewhere()
        await broker.publish(message("here"))
        await other.publish(message("there"))

        assert await ids(broker) == ["here"]
        assert await ids(other) == ["there"]
        assert (await take_and_ack(await consume(other))).id == "there"
        assert await ids(broker) == ["here"]

    async def test_a_closed_session_says_so(self, another: Open) -> None:
        broker = await another()
        consumer = await consume(broker)
        await broker.close()
        await broker.close()

        with pytest.raises(BrokerUnavailable):
            await broker.publish(message())
        with pytest.raises(BrokerUnavailable):
            await broker.queues()
        with pytest.raises(BrokerUnavailable):
            await consumer.receive(1)

    async def test_publishing_and_consuming_may_go_on_at_once(self, broker: Broker, another: Open) -> None:
        consumer = await consume(await another())
        sent = messages(100)

        async def publish() -> None:
            for one in sent:
                await broker.publish(one)

        publishing = asyncio.create_task(publish())
        found = []
        for _ in sent:
            delivery = await take(consumer)
            found.append(delivery.message.id)
            await consumer.settle(delivery, Ack())
        await publishing

        assert found == [one.id for one in sent]
