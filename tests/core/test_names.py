"""Names of queues, topics and patterns: allowed and refused; the queues that `-q` means; events as jobs."""

import random
from collections import Counter
from itertools import repeat

import pytest

from palermo.core import topics, topology
from palermo.core.message import Message
from palermo.core.queue_selection import PausedQueues, QueueRank, QueueSelection, draw_order
from palermo.core.topics import as_job, check_group, check_pattern, check_topic, is_untyped, matches, with_media_type
from palermo.core.topology import (
    amqp_queue,
    check_exchange_name,
    check_id,
    check_job_queue,
    check_new_queue,
    check_queue_name,
)
from palermo.errors import IdInvalid, QueueNameInvalid, SettingInvalid, TopicInvalid


def test_these_names_are_queues() -> None:
    for name in ("jobs", "a", "é" * 63, "x" * 127, "with space inside", "file_*x", "failed-mails", "=mail", "a.b~c"):
        assert check_job_queue(name) == name
    assert check_new_queue("x=y!:5 b") == "x=y!:5 b"


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("0 bytes", ("",)),
        ("128 bytes", ("x" * 128, "é" * 64)),
        ("with a space|begins or ends", ("mail ", "\tmail", "= mail")),
        ("line break", ("two\nlines", "line\u2028separator")),
        ("control character", ("bell\x07", "nul\0", "del\x7fete", "next\x85line")),
        (r"'amq\.'", ("amq.direct", "=amq.gen-1")),
        ("'~'", ("~delays", "=~journal")),
        (r"'(palermo|shop|)\.~'", ("palermo.~facts", "shop.~journal", "=shop.~journal", "=.~journal")),
        ("nothing after", ("=",)),
        ("UTF-8", ("a\udc80",)),
        ("not a string", (7, b"mail", None)),
    ],
)
def test_these_names_are_not(said: str, names: tuple[object, ...]) -> None:
    for name in names:
        with pytest.raises(QueueNameInvalid, match=said):
            check_queue_name(name)


def test_failed_is_no_queue_for_jobs_and_a_pattern_makes_none() -> None:
    for name in ("failed", "failed:mail", "=failed", "=failed:mail", "=shop.failed", "=shop.failed:mail"):
        with pytest.raises(QueueNameInvalid, match="requeue"):
            check_job_queue(name)
    for name in ("*", "mail*", "a?", "a[1]", "a,b", "!low", "=x"):
        assert check_job_queue(name) == name
        with pytest.raises(QueueNameInvalid, match="palermo worker -q"):
            check_new_queue(name)


def test_an_exchange_name_has_no_dots_and_an_id_1_to_255_bytes() -> None:
    assert check_id("x" * 255)
    for name in ("a.b", "", "amq.x", 3):
        with pytest.raises(SettingInvalid):
            check_exchange_name(name)
    for id in (1, None, b"x", "", "x" * 256, "a\udc80"):
        with pytest.raises(IdInvalid):
            check_id(id)


def test_queue_names_are_prefixed_except_on_the_default_exchange() -> None:
    assert topology.amqp_queue("palermo", "mail") == "mail"
    assert topology.amqp_queue("blue", "mail") == "blue.mail"
    assert topology.internal("palermo", "facts") == "palermo.~facts"


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


KNOWN = ["low", "file_b", "high", "failed", "failed:low", "file_a", "critical"]


@pytest.mark.parametrize(
    ("written", "served"),
    [
        ("high,low", ["high", "low"]),
        ("low,high", ["low", "high"]),
        ("unknown,high", ["unknown", "high"]),
        ("*", ["critical", "file_a", "file_b", "high", "low"]),
        ("critical,*", ["critical", "file_a", "file_b", "high", "low"]),
        ("*,critical", ["file_a", "file_b", "high", "low", "critical"]),
        ("file_*", ["file_a", "file_b"]),
        ("file_?,high", ["file_a", "file_b", "high"]),
        ("*,!low", ["critical", "file_a", "file_b", "high"]),
        ("!low", ["critical", "file_a", "file_b", "high"]),
        ("!file_*", ["critical", "high", "low"]),
        ("*,!file_*,!low", ["critical", "high"]),
        ("!failed", ["critical", "file_a", "file_b", "high", "low"]),
        ("f*", ["file_a", "file_b"]),
        (" high , low ", ["high", "low"]),
    ],
)
def test_a_queue_list_means_these_queues_in_this_order(written: str, served: list[str]) -> None:
    assert list(QueueSelection.parse(written).select(KNOWN)) == served


@pytest.mark.parametrize(
    "written",
    [
        *("", ",", "high,", "failed", "high,failed", "failed:low", "amq.x", "~x", "x" * 128, "a\udc80"),
        *("high:0", "high:1001", "!low:2", "failed:5", "high:99999999999999999999"),
    ],
)
def test_a_queue_list_with_a_name_or_weight_that_cannot_be_is_refused(written: str) -> None:
    with pytest.raises(QueueNameInvalid):
        QueueSelection.parse(written)


@pytest.mark.parametrize(
    ("written", "places"),
    [
        ("high:5,low:1", {"high": (0, 5), "low": (0, 1)}),
        (
            "critical,high:5,low:1,*",
            {"critical": (0, 1), "high": (1, 5), "low": (1, 1), "file_a": (2, 1), "file_b": (3, 1)},
        ),
        ("file_*:3,low:1,!file_b", {"file_a": (0, 3), "low": (0, 1)}),
        ("high:2,critical,low:2", {"high": (0, 2), "critical": (1, 1), "low": (2, 2)}),
        ("mail:5:1,low", {"mail:5": (0, 1), "low": (1, 1)}),
        ("low:2,*:1,!file_*", {"low": (0, 2), "critical": (0, 1), "high": (0, 1)}),
    ],
)
def test_neighbours_with_weights_share_one_place(written: str, places: dict[str, tuple[int, int]]) -> None:
    found = QueueSelection.parse(written).places(KNOWN)

    levels = sorted({place.level for place in found.values()})
    assert {name: (levels.index(place.level), place.weight) for name, place in found.items()} == places
    assert QueueSelection.parse(QueueSelection.parse(written).written).places(KNOWN) == found


def test_a_selection_is_fixed_by_whole_names_and_strict_without_weights() -> None:
    for written, fixed in (("a", True), ("a,b", True), ("*", False), ("a,!b", False), ("f_?", False)):
        assert QueueSelection.parse(written).fixed is fixed
    assert QueueSelection.parse("high,low").shared is False
    assert QueueSelection(("mail:5", "low")).select(()) == ("mail:5", "low")
    assert str(QueueSelection(("mail:5", "low"))) == "mail:5:1,low"


def test_queues_are_drawn_in_proportion_to_their_weights() -> None:
    places = QueueSelection.parse("urgent,high:5,middle:3,low:2").places(())
    chance = random.Random(4).random

    looks = [draw_order(places, chance) for _ in repeat(None, 20_000)]

    assert {look[0] for look in looks} == {"urgent"}
    first = Counter(look[1] for look in looks)
    # 5 : 3 : 2 of 20,000, and three standard deviations of the largest, sqrt(20000 * 0.5 * 0.5) = 71.
    assert [first[name] for name in ("high", "middle", "low")] == pytest.approx([10_000, 6_000, 4_000], abs=213)
    then = Counter(look[2] for look in looks if look[1] == "high")
    # Where high is empty the other two keep 3 : 2.
    assert then["middle"] / then["low"] == pytest.approx(3 / 2, rel=0.07)
    # Any chance draws every queue once.
    for luck in (0.0, 0.5, 1.0 - 2**-53):
        order = draw_order({"a": QueueRank(1, 1), "b": QueueRank(1, 1_000), "c": QueueRank(0)}, lambda luck=luck: luck)  # type: ignore[misc]
        assert (sorted(order), order[0]) == (["a", "b", "c"], "c")


def test_a_pause_of_all_queues_leaves_the_failed_ones_open() -> None:
    every, one = PausedQueues(every=True), PausedQueues(names=frozenset({"failed"}))

    assert ["mail" in every, "failed" in every, "failed:mail" in every] == [True, False, False]
    assert ["failed" in one, "mail" in one] == [True, False]
