import os
import subprocess
import sys
from pathlib import Path

from palermo.client.client import Client
from palermo.errors import NotFound
from palermo.inspector.inspector import Inspector
from palermo.settings.settings import Settings
from tests.helpers import eventually
from tests.inspector.jobs import publish_many_failed

COUNT = 3_000


def test_a_requeue_that_is_killed_half_way_and_run_again_loses_nothing(
    client: Client, inspector: Inspector, settings: Settings, tmp_path: Path
) -> None:
    publish_many_failed(client, COUNT)
    command = [str(Path(sys.executable).with_name("palermo")), "failed", "requeue", "--all"]
    environment = {
        **os.environ,
        "PALERMO_URL": settings.url,
        "PALERMO_EXCHANGE": settings.exchange,
        "PALERMO_PUBLISH_TIMEOUT": "30",
    }

    requeue = subprocess.Popen(command, env=environment, cwd=tmp_path)
    eventually(lambda: waiting(inspector) > 0, every=0.005)
    requeue.kill()
    requeue.wait()
    # What the dead one held is back once the broker has noticed.
    eventually(lambda: inspector.size("failed") + waiting(inspector) >= COUNT)
    again = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert again.stdout.startswith("requeued ")
    assert inspector.size("failed") == 0
    listing = inspector.jobs("mail", limit=2 * COUNT)
    assert {row["id"] for row in listing} == {str(n) for n in range(COUNT)}


def waiting(inspector: Inspector) -> int:
    try:
        return inspector.size("mail")
    except NotFound:
        return 0
