"""The output of the demo's story."""

import io

import pytest
from rich.console import Console

from palermo.demo.screen import Screen, per_second, shortened


@pytest.fixture
def out() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def screen(out: io.StringIO) -> Screen:
    return Screen(Console(file=out, highlight=False))


def test_a_long_command_stays_on_one_line_to_be_copied(screen: Screen, out: io.StringIO) -> None:
    screen.command("palermo failed list --url sqlite:///" + "x" * 200, "what is there")

    assert out.getvalue().count("\n") == 1


def test_groups_are_aligned(screen: Screen, out: io.StringIO) -> None:
    groups = [
        {"count": 12, "error": "SyntaxError", "message": "invalid syntax", "id": "1"},
        {"count": 1, "error": "TabError", "message": None, "id": "2"},
    ]

    screen.groups(groups, lambda group: f"file{group['id']}.py")

    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        "  jobs  error        for example  message",
        "    12  SyntaxError  file1.py     invalid syntax",
        "     1  TabError     file2.py",
    ]


def test_what_a_job_says_cannot_drive_the_terminal(screen: Screen, out: io.StringIO) -> None:
    screen.line("[bold]\x1b[2J")
    screen.traceback("Error: \x1b]0;title\x07")

    assert "[bold]" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_without_a_terminal_progress_is_lines_and_not_too_many(screen: Screen, out: io.StringIO) -> None:
    with screen.progress(1_000) as tell:
        for done in range(1_000):
            tell(done, 0)

    assert len(out.getvalue().splitlines()) <= 1


def test_on_a_terminal_progress_is_a_bar() -> None:
    out = io.StringIO()
    screen = Screen(Console(file=out, force_terminal=True, force_interactive=True, width=100, color_system=None))

    with screen.progress(20) as tell:
        tell(20, 3)

    assert "20/20" in out.getvalue()
    assert "3 failed" in out.getvalue()


def test_a_traceback_keeps_its_head_and_its_end() -> None:
    lines = shortened("\n".join(["Traceback", *map(str, range(30)), "Error"]))

    assert lines[:3] == ["Traceback", "  …", "22"]
    assert lines[-1] == "Error"


def test_a_short_traceback_is_shown_whole() -> None:
    assert shortened("Traceback\n  file\nError\n") == ["Traceback", "  file", "Error"]


def test_no_time_at_all_gives_no_rate() -> None:
    assert per_second(5, 0.0) == "0 jobs/s"
    assert per_second(3_000, 2.0) == "1,500 jobs/s"
