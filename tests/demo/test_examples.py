"""examples/shop.py and traced.py do what examples/README.md says."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.webui.process import PALERMO

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PALERMO_URL", f"sqlite:///{tmp_path}/jobs.db")


def run(*command: str) -> str:
    return subprocess.run(command, cwd=EXAMPLES, stdout=subprocess.PIPE, text=True, timeout=100, check=True).stdout


@pytest.mark.slow
def test_the_shop_runs_its_jobs_and_the_failed_one_with_another_card() -> None:
    run(sys.executable, "-B", "shop.py")
    first = run(PALERMO, "worker", "shop", "--burst")
    (failed,) = json.loads(run(PALERMO, "failed", "list", "--json"))
    run(PALERMO, "failed", "requeue", failed["id"], "--kwargs", '{"card": "new"}')
    second = run(PALERMO, "worker", "shop", "--burst")

    assert "mail to ann@example.com: your order" in first
    assert "cat.png is 1280 pixels wide now" in first
    assert failed["error"]["class"] == "shop.CardExpired"
    assert second == "order A-17 is paid\n"
    assert json.loads(run(PALERMO, "failed", "list", "--json")) == []


@pytest.mark.slow
@pytest.mark.parametrize(("broker", "pool"), [("sqlite", "process"), ("rabbitmq", "thread"), ("sqlite", "async")])
def test_an_order_is_one_trace_from_the_checkout_to_the_receipt(
    broker: str, pool: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if broker == "rabbitmq":
        monkeypatch.setenv("PALERMO_URL", request.getfixturevalue("rabbitmq_url"))
        monkeypatch.setenv("PALERMO_EXCHANGE", request.getfixturevalue("exchange"))
    printed = run(sys.executable, "-B", "traced.py") + run(PALERMO, "worker", "traced", "--burst", "--pool", pool)

    spans = [json.loads(text) for text in re.findall(r"^\{$.*?^\}$", printed, re.MULTILINE | re.DOTALL)]
    names = {span["context"]["span_id"]: span["name"] for span in spans}
    assert {(names.get(span["parent_id"]), span["name"]) for span in spans} == {
        *((None, "checkout"), ("checkout", "enqueue traced.charge"), ("process traced.charge", "card")),
        ("enqueue traced.charge", "process traced.charge"),
        ("process traced.charge", "enqueue traced.send_receipt"),
        *(("enqueue traced.send_receipt", "process traced.send_receipt"), ("process traced.send_receipt", "render")),
    }
    assert len({span["context"]["trace_id"] for span in spans}) == 1


@pytest.mark.slow
def test_the_report_is_waited_for_and_printed_as_what_it_is() -> None:
    with subprocess.Popen([PALERMO, "worker", "report"], cwd=EXAMPLES, stderr=subprocess.DEVNULL) as worker:
        try:
            printed = run(sys.executable, "-B", "report.py")
        finally:
            worker.terminate()

    assert printed.splitlines()[1] == "Report(pages=20, skipped=[7, 14])"
