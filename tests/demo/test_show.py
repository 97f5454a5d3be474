"""What the demo prints."""

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


def test_a_group_of_failed_jobs_is_a_row_with_an_example(screen: Screen, out: io.StringIO) -> None:
    groups = [
        {"count": 12, "error": "SyntaxError", "message": "invalid syntax", "id": "1"},
        {"count": 1, "error": "TabError", "message": None, "id": "2"},
    ]

    screen.groups(groups, lambda group: f"file{group['id']}.py")

    _, *rows = (line.split() for line in out.getvalue().splitlines())
    assert rows == [["12", "SyntaxError", "file1.py", "invalid", "syntax"], ["1", "TabError", "file2.py"]]


def test_the_text_of_a_job_cannot_drive_the_terminal(screen: Screen, out: io.StringIO) -> None:
    screen.line("[bold]\x1b[2J")
    screen.traceback("Error: \x1b]0;title\x07")

    assert "[bold]" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_progress_is_a_bar_on_a_terminal_and_few_lines_elsewhere(screen: Screen, out: io.StringIO) -> None:
    shown = io.StringIO()
    terminal = Console(file=shown, force_terminal=True, force_interactive=True, width=100, color_system=None)

    for each in (screen, Screen(terminal)):
        with each.progress(1_000) as tell:
            for done in range(1_000):
                tell(done + 1, 3)

    assert len(out.getvalue().splitlines()) <= 1
    assert "1000/1000" in shown.getvalue()
    assert "3 failed" in shown.getvalue()


def test_a_long_traceback_keeps_its_head_and_its_end() -> None:
    lines = shortened("\n".join(["Traceback", *map(str, range(30)), "Error"]))

    assert lines[:3] == ["Traceback", "  …", "22"]
    assert lines[-1] == "Error"
    assert shortened("Traceback\n  file\nError\n") == ["Traceback", "  file", "Error"]


def test_a_rate_needs_some_time() -> None:
    assert (per_second(5, 0.0), per_second(3_000, 2.0)) == ("0 jobs/s", "1,500 jobs/s")
