"""examples/shop.py and traced.py do what examples/README.md says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
PALERMO = str(Path(sys.executable).with_name("palermo"))


def run(*command: str, url: str) -> str:
    environment = {**os.environ, "PALERMO_URL": url}
    done = subprocess.run(
        command, cwd=EXAMPLES, env=environment, stdout=subprocess.PIPE, text=True, timeout=100, check=True
    )
    return done.stdout


def test_the_shop_runs_its_jobs_and_the_one_that_failed_once_it_has_another_card(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"

    run(sys.executable, "-B", "shop.py", url=url)
    first = run(PALERMO, "worker", "shop", "--burst", url=url)
    (failed,) = json.loads(run(PALERMO, "failed", "list", "--json", url=url))
    run(PALERMO, "failed", "requeue", failed["id"], "--kwargs", '{"card": "new"}', url=url)
    second = run(PALERMO, "worker", "shop", "--burst", url=url)

    assert "mail to ann@example.com: your order" in first
    assert "cat.png is 1280 pixels wide now" in first
    assert failed["error"]["class"] == "shop.CardExpired"
    assert second == "order A-17 is paid\n"
    assert json.loads(run(PALERMO, "failed", "list", "--json", url=url)) == []


def test_an_order_is_one_trace_from_the_checkout_to_the_receipt(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"

    printed = run(sys.executable, "-B", "traced.py", url=url) + run(PALERMO, "worker", "traced", "--burst", url=url)

    spans = [json.loads(text) for text in re.findall(r"^\{$.*?^\}$", printed, re.MULTILINE | re.DOTALL)]
    assert {span["name"] for span in spans} == {
        *("checkout", "enqueue traced.charge", "process traced.charge", "card"),
        *("enqueue traced.send_receipt", "process traced.send_receipt", "render"),
    }
    assert len({span["context"]["trace_id"] for span in spans}) == 1


def test_the_report_is_waited_for_and_printed_as_what_it_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/report.db"
    environment = {**os.environ, "PALERMO_URL": url}

    with subprocess.Popen(
        [PALERMO, "worker", "report"], cwd=EXAMPLES, env=environment, stderr=subprocess.DEVNULL
    ) as worker:
        try:
            printed = run(sys.executable, "-B", "report.py", url=url)
        finally:
            worker.terminate()

    assert printed.splitlines()[1] == "Report(pages=20, skipped=[7, 14])"
