"""An earlier version's queues, streams and messages, and its SQLite files, read and worked by this one."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.errors import DuplicateJob
from tests.acceptance.place import Place
from tests.helpers import HANGS, eventually, has_traceback

#: The last commit of the version before this one: 0.1.0 as it was before broken streams were made anew.
BEFORE = "12dbe627c99f64c64aa2948ef7114b71d3d2ae27"

ROOT = Path(__file__).parents[2]

#: What a program of the earlier version leaves while a worker of that version leads.
ENQUEUE = """
import palermo
from upgraded import held, kept, limited, mended, note, unique
inspector = palermo.inspector()

kept.options(id="kept").enqueue("kept")
for number in range(3):
    mended.options(id=f"mended-{number}").enqueue(f"mended-{number}")
    limited.enqueue(f"limited-{number}")
note.options(id="plain").enqueue("plain")
note.options(id="cancelled").enqueue("cancelled")
inspector.cancel("cancelled")
unique.options(id="unique").enqueue("unique")
for tenant in "acme", "umbrella":
    for number in range(2):
        note.options(tenant=tenant).enqueue(f"{tenant}-{number}")
held.enqueue("paused")
inspector.pause("paused")
note.options(id="soon").enqueue_in(600, "soon")
note.options(id="far").enqueue_in(40 * 86_400, "far")
inspector.put_recurring("added", "upgraded.note", every=86_400, args=["added"], queue="waiting")
"""

#: What it leaves when no worker runs any more.
LEAVE = """
import palermo
from upgraded import note
note.options(id="near").enqueue_in(1, "near")
note.options(id="last").enqueue("last")
palermo.publish("order.new", "ordered")
"""

#: The jobs that wait in one queue, by their argument: limited ones, unique ones, those of tenants.
WAITING = {
    *("plain", "cancelled", "unique", "last"),
    *(f"{name}-{number}" for name in ("acme", "umbrella") for number in range(2)),
    *(f"limited-{number}" for number in range(3)),
}

#: What is run in the end, each once.
WORKED = [
    *(WAITING - {"cancelled"}),
    *(f"mended-{number}" for number in range(3)),
    *("kept", "paused", "near", "soon", "far", "added", "declared", "ordered"),
]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the version before this one."""
    asked = ["git", "-C", str(ROOT), "cat-file", "-e", f"{BEFORE}^{{commit}}"]
    if shutil.which("git") is None or subprocess.run(asked, check=False).returncode:
        pytest.fail(f"commit {BEFORE} is not here: fetch the whole history, `git fetch --unshallow`.", pytrace=False)
    folder = tmp_path_factory.mktemp("earlier")
    command = ["git", "-C", str(ROOT), "archive", BEFORE, "palermo", "webui", "serializers"]
    packed = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
    return folder


@pytest.fixture(params=["sqlite", "classic", "quorum"])
def place(request: pytest.FixtureRequest, tmp_path: Path, exchange: str) -> Iterator[Place]:
    """The user's place, on each broker and type of queue."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    kind = "classic" if request.param == "sqlite" else request.param
    if request.param != "sqlite":
        url = request.getfixturevalue("rabbitmq_url")
    with Place(tmp_path, url, exchange, queue_type=kind) as place:
        place.environment["PALERMO_JOURNAL"] = "all"
        yield place


def test_this_version_reads_and_works_all_that_the_one_before_left(place: Place, earlier: Path) -> None:
    now = place.environment["PYTHONPATH"]
    place.environment["PYTHONPATH"] = f"{earlier}{os.pathsep}{now}"
    worker = place.worker("-q", "done", modules=["upgraded"])
    place.python(ENQUEUE)
    place.await_lines(1)
    # Asked with the earlier version too: it refuses an SQLite file as soon as this one has opened it.
    eventually(lambda: len(place.rows("failed", "list")) == 3)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0, worker.log
    place.python(LEAVE)
    place.environment["PYTHONPATH"] = now
    assert [Path(line).is_relative_to(earlier) for line in place.lines("versions")] == [True]

    leader = place.worker("-q", "done", modules=["upgraded"])
    place.ready(leader)
    # While it begins to lead, it holds jobs for a moment that then are in their queues again.
    eventually(lambda: all_is_there(place))

    (place.path / "mended").touch()
    inspector = place.inspector
    assert len(inspector.requeue([f"mended-{number}" for number in range(3)])) == 3
    assert {row["id"] for row in inspector.run_now(["soon", "far"])} == {"soon", "far"}
    inspector.run_recurring("added")
    inspector.run_recurring("declared")
    inspector.resume("paused")
    worker = place.worker(modules=["upgraded"])
    place.await_lines(len(WORKED))
    eventually(lambda: not any(row["pending"] or row["in_progress"] for row in place.inspector.queues()))
    for one in (worker, leader):
        one.send(signal.SIGTERM)
        assert one.wait() == 0, one.log
        assert not has_traceback(one.log)

    assert sorted(place.lines()) == sorted(WORKED)
    assert inspector.unique_keys() == []
    ended = {row["id"]: row["state"] for row in reversed(inspector.history().rows)}
    assert (ended["kept"], ended["mended-0"], ended["far"], ended["cancelled"]) == ("done", "done", "done", "cancelled")


def all_is_there(place: Place) -> bool:
    """Whether everything that the earlier version left is shown; asserts it, part by part."""
    inspector = place.inspector
    queues = {row["name"]: row for row in inspector.queues()}
    assert {name for name, row in queues.items() if row["paused"]} == {"paused"}
    assert (queues["paused"]["pending"], queues["failed"]["pending"]) == (1, 3)
    assert queues["waiting"]["pending"] in (len(WAITING), len(WAITING) + 1)  # the near one
    if place.environment["PALERMO_QUEUE_TYPE"] == "classic":  # RabbitMQ lets nobody look into a quorum queue
        waiting = {row["args"][0]: row for row in inspector.jobs("waiting")}
        assert waiting.keys() - {"near"} == WAITING
        assert {text: row["tenant"] for text, row in waiting.items() if row["tenant"]} == {
            f"{tenant}-{number}": tenant for tenant in ("acme", "umbrella") for number in range(2)
        }
        assert {text for text, row in waiting.items() if row["state"] == "cancelled"} == {"cancelled"}
    # On RabbitMQ the leader has some of their jobs in the queue itself, where they do not count here.
    assert {row["tenant"] for row in inspector.clients("waiting")} <= {"acme", "umbrella"}
    assert [row["id"] for row in inspector.scheduled()][-2:] == ["soon", "far"]
    assert {row["name"]: row["job"] for row in inspector.recurring()} == {
        "added": "upgraded.note",
        "declared": "upgraded.yearly",
    }
    assert [(row["key"], row["state"]) for row in inspector.unique_keys()] == [("id:unique", "waiting")]
    with pytest.raises(DuplicateJob):
        place.client.enqueue("upgraded.unique", ["twice"], id="unique", unique="until_done", on_duplicate="raise")
    assert set(place.errors().values()) == {"ValueError: not mended yet"}
    assert [(row["group"], row["topics"], row["pending"]) for row in inspector.topics()] == [("orders", ["order.*"], 1)]
    assert {row["id"]: row["state"] for row in inspector.history()} == {
        "kept": "done",
        **{f"mended-{number}": "failed" for number in range(3)},
    }
    assert {row["action"] for row in inspector.audit()} == {"cancel", "pause", "put recurring"}
    assert place.client.job_by_id("kept").result(timeout=HANGS) == {"kept": "kept"}
    return True
