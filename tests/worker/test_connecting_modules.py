"""Workers whose modules call `palermo.connect`."""

from pathlib import Path

import pytest

from tests.harness.rig import Rig

JOBS = """
import palermo
palermo.connect({url!r}, {settings})

@palermo.job
def note(path):
    with open(path, "a") as file:
        file.write("done\\n")
"""


@pytest.mark.parametrize(
    ("url", "settings", "named"),
    [
        ("", "exchange='shop'", ["exchange 'shop'", "exchange 'palermo'"]),
        ("sqlite:////tmp/elsewhere/jobs.db", "exchange='palermo'", ["sqlite:////tmp/elsewhere/jobs.db"]),
        ("amqp://me:secret@rabbit:1/shop", "", ["amqp://me:***@rabbit:1/shop"]),
    ],
)
def test_a_worker_whose_module_connects_elsewhere_refuses_to_start(
    url: str, settings: str, named: list[str], rig: Rig, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere.py").write_text(JOBS.format(url=url or rig.settings.url, settings=settings))

    worker = rig.worker("--burst", modules=("elsewhere",), cwd=tmp_path)

    assert worker.wait() == 1
    assert all(text in worker.log for text in [*named, str(rig.settings.address), "PALERMO_URL"]), worker.log
    assert "secret" not in worker.log


def test_a_worker_whose_module_connects_to_its_broker_runs_the_jobs(rig: Rig, tmp_path: Path) -> None:
    settings = "exchange='palermo', default_queue='own', publish_timeout=9"
    (tmp_path / "here.py").write_text(JOBS.format(url=rig.settings.url, settings=settings))
    rig.enqueue("note", str(rig.notes_path), module="here", queue="own")

    rig.burst(modules=("here",), cwd=tmp_path)

    assert rig.lines() == ["done"]
