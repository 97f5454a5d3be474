"""Names: allowed and refused, each with a text that says what to do."""

import pytest

from palermo.core import topology
from palermo.core.topology import check_exchange_name, check_id, check_job_queue, check_new_queue, check_queue_name
from palermo.errors import IdInvalid, QueueNameInvalid, SettingInvalid


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
