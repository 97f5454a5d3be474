"""Names: allowed and refused, each with a text that says what to do."""

import pytest

from palermo.core.topology import (
    amqp_queue,
    check_exchange_name,
    check_id,
    check_job_queue,
    check_new_queue,
    check_queue_name,
    internal,
)
from palermo.errors import IdInvalid, QueueNameInvalid, SettingInvalid


@pytest.mark.parametrize("name", ["jobs", "a", "é" * 63, "x" * 127, "with space inside", "file_*x", "failed-mails"])
def test_these_names_are_queues(name: str) -> None:
    assert check_job_queue(name) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "0 bytes"),
        ("x" * 128, "128 bytes"),
        ("é" * 64, "128 bytes"),
        ("mail ", "ends in a blank"),
        ("\tmail", "begins or ends"),
        ("two\nlines", "line break"),
        ("bell\x07", "control character"),
        ("nul\0", "control character"),
        ("del\x7fete", "control character"),
        ("next\x85line", "control character"),
        ("line\u2028separator", "line break"),
        ("amq.direct", "'amq.'"),
        ("~delays", "'~'"),
        ("palermo.~registry", "'palermo.~'"),
        ("shop.~journal", "'shop.~'"),
        ("=shop.~journal", "'shop.~'"),
        ("=~journal", "'~'"),
        ("=.~journal", "'.~'"),
        ("=amq.gen-1", "'amq.'"),
        ("= mail", "begins or ends"),
        ("=", "nothing behind"),
        ("a\udc80", "UTF-8"),
        (7, "not text"),
        (b"mail", "not text"),
        (None, "not text"),
    ],
)
def test_these_names_are_not(name: object, said: str) -> None:
    with pytest.raises(QueueNameInvalid, match=said.replace(".", r"\.")):
        check_queue_name(name)


@pytest.mark.parametrize(
    "name", ["failed", "failed:mail", "=failed", "=failed:mail", "=shop.failed", "=shop.failed:mail"]
)
def test_failed_is_no_queue_for_jobs(name: str) -> None:
    with pytest.raises(QueueNameInvalid, match="requeue"):
        check_job_queue(name)


@pytest.mark.parametrize("name", ["=tuleap_mail", "=mail", "=failed_mail", "a.b~c", "a~b", "x=y"])
def test_names_behind_a_sign_and_tildes_within_are_queues(name: str) -> None:
    assert check_job_queue(name) == name


@pytest.mark.parametrize("name", ["*", "mail*", "a?", "a[1]", "a,b", "!low", "=x"])
def test_a_name_that_a_worker_reads_as_a_pattern_makes_no_queue(name: str) -> None:
    assert check_job_queue(name) == name
    with pytest.raises(QueueNameInvalid, match="palermo worker -q"):
        check_new_queue(name)


@pytest.mark.parametrize("name", ["jobs", "a!b", "x=y", "a:5", "a b"])
def test_other_names_are_for_new_queues(name: str) -> None:
    assert check_new_queue(name) == name


@pytest.mark.parametrize("name", ["a.b", "", "amq.x", 3])
def test_an_exchange_name_has_no_dots(name: object) -> None:
    with pytest.raises(SettingInvalid):
        check_exchange_name(name)


@pytest.mark.parametrize("id", [1, None, b"x", "", "x" * 256, "a\udc80"])
def test_an_id_is_text_of_1_to_255_bytes(id: object) -> None:
    with pytest.raises(IdInvalid):
        check_id(id)
    assert check_id("x" * 255)


def test_queue_names_are_prefixed_except_on_the_default_exchange() -> None:
    assert amqp_queue("palermo", "mail") == "mail"
    assert amqp_queue("blue", "mail") == "blue.mail"
    assert internal("palermo", "registry") == "palermo.~registry"
