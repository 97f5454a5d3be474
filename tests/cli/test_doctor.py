"""`palermo doctor`: what is wrong here, on the embedded broker and where there is none."""

import sqlite3
from pathlib import Path

import pytest

from palermo.brokers.sqlite.diagnosis import file_system, space
from palermo.client.client import Client
from palermo.settings.settings import setting_origins
from tests.cli.conftest import Palermo


def test_a_sound_file_has_findings_of_each_kind_and_no_problem(palermo: Palermo, tmp_path: Path) -> None:
    palermo("pause", "--all")

    *lines, last = palermo("doctor", "--url", "sqlite:///jobs.db").stdout.splitlines()
    rows = palermo.rows("doctor")

    assert last.startswith("0 problems")
    assert all(line.startswith(("ok ", "warning ", "         ->")) for line in lines)
    assert any("synchronous = FULL" in line for line in lines)
    assert any(f"on file {tmp_path}/jobs.db" in line for line in lines)
    assert any("all queues are paused" in line for line in lines)
    assert all(row.keys() == {"check", "level", "text", "advice", "names"} for row in rows)
    assert {"settings", "durability", "file system", "disk space"} <= {row["check"] for row in rows}


def test_settings_are_told_without_secrets(palermo: Palermo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "k" * 20
    (tmp_path / "palermo.toml").write_text(f'exchange = "shop"\nsigning_keys = ["{key}"]\n')
    monkeypatch.setenv("PALERMO_EXCHANGE", "night")

    found = {source.setting: (source.origin, source.shown) for source in setting_origins(url="amqp://me:hunter2@h/")}

    assert found["exchange"] == ("PALERMO_EXCHANGE", "night")
    assert found["url"] == ("given", "amqp://me:***@h:5672/")
    assert found["signing_keys"] == (str(tmp_path / "palermo.toml"), "not shown")
    monkeypatch.setenv("PALERMO_QUEUE_TYP", "quorum")
    told = palermo("doctor").stdout
    assert (key in told, "Did you mean 'PALERMO_QUEUE_TYPE'?" in told) == (False, True)


@pytest.mark.parametrize(("mode", "warned"), [(0o644, True), (0o640, False)])
def test_a_secret_that_everyone_may_read_is_named(palermo: Palermo, tmp_path: Path, mode: int, warned: bool) -> None:
    file = tmp_path / "palermo.toml"
    file.write_text('signing_keys = ["kkkkkkkkkkkkkkkkkkkk"]\n')
    file.chmod(mode)

    assert ("all users of this machine can read it" in palermo("doctor").stdout) is warned


@pytest.mark.parametrize(
    ("path", "level", "kind"),
    [
        ("/srv/jobs.db", "ok", "ext4"),
        ("/srv/share/jobs.db", "warning", "nfs4"),
        ("/srv/shared/jobs.db", "ok", "ext4"),
        ("/srv/share/local/jobs.db", "ok", "xfs"),
        ("/run/jobs.db", "warning", "tmpfs"),
        ("/win/jobs.db", "warning", "cifs"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(path: str, level: str, kind: str) -> None:
    mounted = [
        ("/", "overlay"),
        ("/", "ext4"),
        ("/srv/share", "nfs4"),
        ("/srv/share/local", "xfs"),
        ("/run", "tmpfs"),
        ("/win", "cifs"),
    ]

    found = file_system(path, mounted)

    assert (found.level, kind in found.text) == (level, True)
    assert file_system(path, []).level == "ok", "a system that does not say is no problem"
    assert [space(size * 1024**2).level for size in (50, 500, 5_000)] == ["problem", "warning", "ok"]


def test_keys_without_jobs_are_found_and_mended(palermo: Palermo, client: Client, url: str) -> None:
    client.enqueue("shop.sync", [1], unique="until_done", unique_key="eu")
    with sqlite3.connect(url.removeprefix("sqlite:///")) as db:
        db.execute("delete from job")  # as another program would
    db.close()

    said = palermo("doctor", code=1).stdout

    assert "shop.sync:eu" in said
    assert "palermo doctor --mend" in said
    assert [row["key"] for row in palermo.rows("unique", "list", "--orphaned")] == ["shop.sync:eu"]
    assert "freed 1 key" in palermo("doctor", "--mend").stdout
    assert palermo.rows("unique", "list") == []
