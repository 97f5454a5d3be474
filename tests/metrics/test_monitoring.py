"""The dashboard, the alerts and the examples of docs/guides/monitoring/ name real metrics; Prometheus reads them."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from palermo.metrics.catalogue import GAUGE, HISTOGRAM, METRICS, WEB, WORKER
from palermo.metrics.exposition import Families, expose
from palermo.metrics.totals import Totals
from tests import promtool_found

_DOCS = Path(__file__).parents[2] / "docs" / "guides"
_MONITORING = _DOCS / "monitoring"

#: Metrics that are told besides Palermo's own, by name.
_FOREIGN = {"process_resident_memory_bytes"}

#: Labels that Prometheus puts on what it scrapes.
_TARGET = {"job", "instance"}

_SELECTOR = re.compile(r"\b((?:palermo|process)_[a-z_]+)(?:\{([^}]*)\})?")


def names() -> dict[str, set[str]]:
    """What may be asked for, with its labels."""
    found: dict[str, set[str]] = {}
    for metric in METRICS.values():
        labels = set(metric.labels) | _TARGET
        if metric.kind == HISTOGRAM:
            found |= {f"{metric.name}_bucket": labels | {"le"}}
            found |= {f"{metric.name}_{part}": labels for part in ("sum", "count")}
        else:
            found[metric.name] = labels
    return found | dict.fromkeys(_FOREIGN, _TARGET)


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression in PromQL that there is, and where."""
    dashboard = json.loads((_MONITORING / "grafana.json").read_text())
    [alerts] = yaml.safe_load((_MONITORING / "alerts.yml").read_text())["groups"]
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield f"panel {panel['title']}", target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["query"]["query"]
    for rule in alerts["rules"]:
        yield f"alert {rule['alert']}", rule["expr"]
    for document in yaml.safe_load_all((_MONITORING / "keda.yml").read_text()):
        for trigger in document["spec"].get("triggers", ()) if document["kind"] == "ScaledObject" else ():
            if trigger["type"] == "prometheus":
                yield "keda", trigger["metadata"]["query"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_metric_and_label_that_is_asked_for_exists(where: str, expression: str) -> None:
    asked = _SELECTOR.findall(expression)

    assert asked, f"{where} asks for nothing of Palermo"
    for name, matchers in asked:
        assert name in names(), f"{where} asks for {name}"
        assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= names()[name], f"{where}: labels of {name}"
    labels = set.union(*(names()[name] for name, _ in asked))
    for by in re.findall(r"\bby \(([^)]*)\)", expression):
        assert set(by.replace(" ", "").split(",")) <= labels, f"{where}: by ({by})"


def test_every_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    asked = {name for _, expression in expressions() for name, _ in _SELECTOR.findall(expression)}
    seldom = {"palermo_info", "palermo_worker_info", "palermo_worker_start_time_seconds", "palermo_worker_state"}
    seldom |= {"palermo_worker_job_run_seconds", "palermo_worker_job_wait_seconds"}

    assert {name for name in METRICS if not any(each.startswith(name) for each in asked)} == seldom


@pytest.fixture
def promtool() -> Path:
    return promtool_found.find()


@pytest.mark.slow
def test_prometheus_reads_the_examples_and_each_alert_comes_in_time(promtool: Path, tmp_path: Path) -> None:
    known = {"$__rate_interval": "5m", "$job": "palermo", "$queue": ".*", "$workers": ".*"}
    rules = []
    for nth, (where, expression) in enumerate(expressions()):
        if where.startswith("panel"):
            for name, value in known.items():
                expression = expression.replace(name, value)
            rules.append({"record": f"panel:{nth}", "expr": expression})
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for file in (*_MONITORING.glob("*.yml"), Path(__file__).with_name("alerts_test.yml")):
        shutil.copy(file, tmp_path)

    for command in (
        "check config --syntax-only prometheus.yml",
        "check rules alerts.yml",
        "check rules panels.yml",
        "test rules alerts_test.yml",
    ):
        done = subprocess.run([promtool, *command.split()], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_has_no_objection_to_any_name_type_or_help(promtool: Path) -> None:
    """`promtool check metrics` knows the conventions."""
    for metrics, prefix in ((WEB, "palermo_"), (WORKER, "palermo_worker_")):
        assert all(metric.name.startswith("palermo_worker_") == (metrics is WORKER) for metric in metrics)
        totals, families = Totals(), Families(metrics)
        totals.count("succeeded", "mail", "send", 1.0, 1.0)
        families.tallies(totals.copy(), prefix=prefix)
        for metric in metrics:
            if metric.kind == GAUGE:
                families.set(metric.name, 1, *metric.labels)
        body, _ = expose(families)
        done = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, b"")
