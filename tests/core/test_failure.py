"""The parts of an error that are kept, and which errors are of one kind."""

import pytest
from msgspec.structs import replace

from palermo.core.failure import Failure, cut, cut_middle, fingerprint, from_exception, innermost_frame


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_exception_is_kept_with_class_message_and_trace() -> None:
    failure = from_exception(raised(ValueError("too small")), failed_at=1_700)

    assert (failure.exception_class, failure.message, failure.failed_at) == ("ValueError", "too small", 1_700)
    assert failure.stack_trace.splitlines()[-1] == "ValueError: too small"
    assert innermost_frame(failure.stack_trace) == "test_failure.py:raised"

    ours = from_exception(raised(ValueError("x")), failed_at=0, skip=frozenset({__file__}))
    assert ours.stack_trace.count("File ") == 1, "frames of the framework at the start are left out"


def test_an_exception_without_readable_words_is_a_failure() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    surrogate = from_exception(raised(ValueError("bad \udc80 name")), failed_at=0)

    assert "cannot be read" in from_exception(raised(Silent()), failed_at=0).message
    assert surrogate.message == "bad ? name"
    surrogate.stack_trace.encode()


def test_a_long_trace_is_cut_in_its_middle_to_bytes() -> None:
    for size in (1_000, 16_000):
        shorter = cut_middle("start\n" + "é" * 20_000 + "\nend", size)
        assert (len(shorter.encode()) <= size, "cut" in shorter) == (True, True)
        assert (shorter[:5], shorter[-3:], cut_middle("short", size)) == ("start", "end", "short")
    assert len(cut(Failure(exception_class="E", message="m" * 5_000, stack_trace="", failed_at=0)).message) == 2_000
    assert cut_middle("x" * 100, 0).strip() == "… cut …"


def test_failures_of_one_kind_share_a_fingerprint() -> None:
    trace = 'Traceback (most recent call last):\n  File "/app/shop.py", line {}, in send\n    go()\nValueError: x'
    one = Failure(exception_class="ValueError", message="a", stack_trace=trace.format(1), failed_at=1)
    other_line = replace(one, message="b", stack_trace=trace.format(99))
    other_place = replace(one, stack_trace=trace.replace("in send", "in take").format(1))

    assert fingerprint("shop.send", one) == fingerprint("shop.send", other_line)
    places = (("shop.send", one), ("shop.send", other_place), ("shop.take", one))
    assert len({fingerprint(*place) for place in places}) == 3


@pytest.mark.parametrize(
    ("trace", "place"),
    [
        ('  File "C:\\app\\a.py", line 3, in <module>\nE', "a.py:<module>"),
        ("java.lang.Error: x\n\tat shop.Mail.send(Mail.java:7)", "shop.Mail.send(Mail.java:7)"),
        (
            "java.lang.Error: x\n\tat shop.Mail.send(Mail.java:7)\n\tat Main.main(Main.java:3)",
            "shop.Mail.send(Mail.java:7)",
        ),
        ('  File "a.py", line 3, in call\n    x()\npy4j.Error: at one(A.java:1)\n  at two(B.java:2)', "two(B.java:2)"),
        ("no frames", ""),
    ],
)
def test_the_place_of_an_error_is_its_newest_frame(trace: str, place: str) -> None:
    assert innermost_frame(trace) == place
