"""Topics, patterns, the names of queues, and events as jobs."""

import pytest

from palermo.core import topics
from palermo.core.message import Message
from palermo.core.topics import as_job, check_group, check_pattern, check_topic, is_untyped, matches, with_media_type
from palermo.core.topology import amqp_queue
from palermo.errors import QueueNameInvalid, TopicInvalid


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        *(("a.b", ["a.b"], ["a.c"]), ("a.*", ["a.b"], ["a", "a.b.c"]), ("*.b", ["a.b"], ["b"]), ("*", ["a"], [""])),
        *(("#", ["a.b.c", ""], []), ("a.#", ["a", "a.b.c"], ["b.a"]), ("#.c", ["c", "a.b.c"], ["c.a"])),
        *(("a.#.c", ["a.c", "a.b.b.c"], ["a.b.c.d"]), ("#.a.#", ["x.a.y.z"], ["x.y"]), ("*.#", ["a.b"], [""])),
        *(("#.#", ["a"], []), ("", [""], ["a"])),
    ],
)
def test_patterns_match_as_those_of_a_topic_exchange(pattern: str, matching: list[str], others: list[str]) -> None:
    assert [topic for topic in (*matching, *others) if matches(pattern, topic)] == matching


@pytest.mark.parametrize("topic", ["", None, 7, ".a", "a.", "a..b", "a.b ", "x" * 256, "\ud800"])
def test_what_is_no_topic_or_group_is_refused(topic: object) -> None:
    for check in (check_topic, check_pattern):
        with pytest.raises(TopicInvalid, match="topic"):
            check(topic)
    for group in ("", None, " a", "~a", "x" * 200):
        with pytest.raises((TopicInvalid, QueueNameInvalid), match="group"):
            check_group(group)


def test_topics_are_words_and_wildcards_whole_words_of_who_subscribes() -> None:
    for topic in ("order.paid", "a", "tracker.artifact.updated", "ü.1", "a b.c"):
        assert check_topic(topic) == check_pattern(topic) == topic
    assert check_pattern("*.b.#") == "*.b.#"
    with pytest.raises(TopicInvalid, match="Only subscriptions have patterns"):
        check_topic("order.*")
    with pytest.raises(TopicInvalid, match="one whole word"):
        check_pattern("order.pa*")


@pytest.mark.parametrize(
    ("exchange", "prefix", "queue", "amqp"),
    [
        ("palermo", "palermo", "palermo_mail", "palermo_mail"),
        ("shop", "shop", "shop_mail", "shop_mail"),
        ("palermo", "tuleap", "tuleap_mail", "tuleap_mail"),
        ("shop", "tuleap", "=tuleap_mail", "tuleap_mail"),
    ],
)
def test_the_queue_of_a_group_has_one_name_at_every_exchange(exchange: str, prefix: str, queue: str, amqp: str) -> None:
    assert topics.group_queue(exchange, prefix, "mail") == queue
    assert amqp_queue(exchange, queue) == amqp
    assert topics.group_of(f"{prefix}_gateway", queue) == topics.group_of(f"{prefix}_distributor", queue) == "mail"
    assert {topics.group_of(of, queue) for of in (exchange, "", "other_gateway")} == {""}


def test_an_event_becomes_a_job_of_its_group_whatever_it_said() -> None:
    event = Message(id="e1", queue="shop_mail", job="shop.DeleteAll", extra={"topic": "other", "x": 1})

    job = as_job(event, group="mail", topic="order.paid", run="")
    again = as_job(event, group="mail", topic="order.paid", run="7")

    assert (job.id, job.job, job.topic, job.extra["x"]) == ("e1@mail", "mail", "order.paid", 1)
    assert (job.signed_id, job.signed_job) == ("e1", "order.paid")
    assert (again.id, again.signed_id) == ("e1@mail~7", "e1")
    assert event.topic == ""
    long = as_job(Message(id="x" * 255, queue="shop_mail", job=""), group="mail", topic="a")
    assert (len(long.id) <= 255, long.id.endswith("@mail")) == (True, True)


@pytest.mark.parametrize(("body", "json"), [(b'{"a": 1}', True), (b"7", True), (b"\xff\x00", False), (b"hello", False)])
def test_an_event_that_does_not_say_what_it_is_is_json_if_it_decodes(body: bytes, json: bool) -> None:
    job = as_job(Message(id="1", queue="q", job="", body=body, content_type=topics.OCTETS), group="mail", topic="a")

    assert with_media_type(job).content_type == ("application/json" if json else topics.OCTETS)
    assert is_untyped(with_media_type(job)) is not json
    assert not is_untyped(Message(id="1", queue="q", job="a", body=body, content_type="application/json"))
