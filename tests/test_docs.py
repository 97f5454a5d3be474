"""The documents say what the code does."""

import re
from pathlib import Path

import pytest

from palermo.client.status import State
from palermo.core.journal_records import JournalLevel, RecordKind, is_wanted
from palermo.core.lifecycle import TRANSITIONS, JobState
from palermo.errors import ResultError
from palermo.jobs.hooks import HOOKS
from palermo.worker.parent.orders import ORDERS
from palermo.worker.signals import RESQUE_SIGNALS, SIGNALS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def rows(document: str, columns: int) -> list[tuple[str, ...]]:
    """The cells of all table rows with so many columns in a document."""
    found = []
    for line in (DOCS / document).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == columns and not set(line) <= set("|- "):
            found.append(tuple(cells))
    return found


def test_the_chart_of_a_jobs_life_is_drawn_from_the_transitions() -> None:
    drawn = rows("reference/lifecycle.md", 3)[1:]

    assert drawn == [(what, str(origin or ""), str(to)) for what, origin, to in TRANSITIONS]


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_is_explained(state: JobState) -> None:
    assert f"* **{state}**" in (DOCS / "reference/lifecycle.md").read_text()


def test_every_name_that_palermo_has_on_the_broker_is_on_one_page() -> None:
    code = "".join(path.read_text() for path in (ROOT / "palermo" / "brokers" / "rabbitmq").rglob("*.py"))
    names = set(re.findall(r'internal\([\w.]+, f?"([a-z.-]+)', code))

    for page in ("internals/wire.md", "internals/on-the-broker.md"):
        documented = (DOCS / page).read_text()

        assert len(names) > 10
        assert {name for name in names if f"`~{name}" not in documented} == set(), page


def test_the_page_of_names_lists_every_sqlite_table_and_fits_a_screen() -> None:
    page = (DOCS / "internals/on-the-broker.md").read_text()
    schema = ROOT / "palermo" / "brokers" / "sqlite" / "file" / "schema"
    tables = {name for path in schema.glob("*.sql") for name in re.findall(r"create table (\w+)", path.read_text())}
    listed = {name for cell, _ in rows("internals/on-the-broker.md", 2) for name in re.findall(r"`(\w+)`", cell)}

    assert len(page.splitlines()) <= 70
    assert listed == tables


def test_every_key_in_redis_is_on_one_page() -> None:
    folder = ROOT / "palermo" / "brokers" / "redis"
    code = "".join(path.read_text() for path in [*folder.glob("*.py"), *folder.glob("scripts/*.lua")])
    names = set(re.findall(r"""key\(f?['"]([a-z-]+)[:'"{]""", code)) - {"nothing"}
    page = (DOCS / "internals/redis.md").read_text()

    assert len(names) > 30
    assert {name for name in names if f"`{name}`" not in page and f"`{name}:" not in page} == set()


def test_every_hook_is_documented_with_the_process_in_which_it_runs() -> None:
    documented = {row[0].strip("`"): row[1] for row in rows("guides/hooks.md", 5)[1:]}

    assert documented == {hook.name: hook.process for hook in HOOKS}


def test_every_signal_is_documented_with_what_it_does() -> None:
    documented = {row[0]: row[1] for row in rows("reference/signals.md", 2)[1:]}

    assert documented == {signal.name: signal.meaning for signal in SIGNALS} | {
        f"{signal.name} with `--resque-signals`": signal.meaning for signal in RESQUE_SIGNALS
    }


def test_every_record_is_documented_with_its_level() -> None:
    documented = {row[0].strip("`"): row[1] for row in rows("guides/journal.md", 4)[1:]}

    assert documented == {
        kind.value: (JournalLevel.FAILURES if is_wanted(kind, JournalLevel.FAILURES) else JournalLevel.ALL).value
        for kind in RecordKind
    }


def test_every_level_of_the_journal_is_documented() -> None:
    assert [row[0].strip("`") for row in rows("guides/journal.md", 3)[1:]] == [level.value for level in JournalLevel]


def test_every_order_is_documented_with_what_it_does_and_answers() -> None:
    documented = {row[0]: row[1:] for row in rows("guides/operating.md", 3)[1:]}

    assert documented == {order.action: (order.meaning, order.answer) for order in ORDERS}


def test_every_status_is_explained() -> None:
    documented = [row[0] for row in rows("learn/results.md", 3)[1:]]

    assert documented == [state.value for state in State]


def test_every_reason_to_have_no_result_is_explained() -> None:
    documented = {row[0].split("`")[1] for row in rows("learn/results.md", 2)[1:]}

    assert documented == {kind.__name__ for kind in ResultError.__subclasses__()} | {"NotFound"}
