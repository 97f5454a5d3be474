"""Programs in other languages enqueue jobs and read failed ones, by docs/internals/wire.md and nothing else."""

import json
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.brokers.rabbitmq.cluster import facts
from palermo.core.topology import amqp_queue
from tests.debian import NotInstalled
from tests.doc_pages import blocks
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.interop import clients
from tests.interop.clients import ForeignClient

_REPOSITORY = Path(__file__).parents[2]
_GUIDE = _REPOSITORY / "docs" / "guides" / "languages.md"
_EXAMPLES = _REPOSITORY / "examples"

#: Of these languages only the first two are installed for the tests.
_FIND = {
    "amqplib": clients.find_amqplib,
    "bunny": clients.find_bunny,
    "php_amqplib": clients.find_php_amqplib,
    "amqp091_go": clients.find_amqp091_go,
}


@pytest.fixture(params=_FIND)
def foreign(request: pytest.FixtureRequest) -> ForeignClient:
    try:
        return _FIND[request.param]()
    except NotInstalled as missing:
        if request.param in ("amqplib", "bunny"):
            raise
        pytest.skip(str(missing))


@pytest.fixture
def rig(rabbitmq_url: str, exchange: str, tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, rabbitmq_url, exchange, module="interop_jobs") as rig:
        yield rig


@pytest.mark.slow
def test_jobs_of_a_foreign_client_run_and_it_reads_the_one_that_failed(foreign: ForeignClient, rig: Rig) -> None:
    began = time.time()
    foreign.publish(rig.url, exchange=rig.exchange, queue=amqp_queue(rig.exchange, "jobs"))

    rig.burst()

    noted = [json.loads(line) for line in rig.trace_path.read_text(encoding="utf-8").splitlines()]
    assert [(note["args"], note["kwargs"]) for note in noted] == [
        (["positional", 1, 2.5, None, True], {}),
        ([], {"to": "grüße@東京.example", "count": 3}),
        (["both"], {"loud": True}),
        (["single"], {}),
        ([], {}),
    ]
    assert all(note["id"] for note in noted)
    assert [note["id"] for note in noted[3:]] == [f"chosen-by-{foreign.language}", "named-in-a-header"]

    [failed] = foreign.read(rig.url, queue=amqp_queue(rig.exchange, "failed"))
    headers = failed.pop("headers")
    assert failed == {
        "id": f"fails-from-{foreign.language}",
        "content_type": "application/json",
        "delivery_mode": 2,
        "body": "[1099511627776]",
    }
    assert "in explode" in headers.pop("stack-trace")
    assert re.fullmatch(r"pid:\d+@.+/worker-1", headers.pop("worker"))
    assert began - 60 < headers.pop("failed-at") < time.time() + 60
    assert headers == {
        "id": f"fails-from-{foreign.language}",
        "job-class": "interop.explode",
        "queue": "jobs",
        "created-at": 1_700_000_000,
        "retries": 0,
        "exception-class": "ValueError",
        "exception-message": "cannot päy 1099511627776",
        "x-small": 7,
        "x-text": "ünchanged",
    }


@pytest.mark.slow
def test_the_guides_program_works_and_its_failed_job_is_requeued(
    foreign: ForeignClient, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the queue of failed jobs that the other program makes is seen a minute later.
    monkeypatch.setattr(facts, "RARELY", 0.1)
    at = {"url": rig.url, "exchange": rig.exchange}
    foreign.enqueue_example(**at)
    worker = rig.launch([sys.executable, "-m", "palermo", "worker", "shop", "--burst"], cwd=_EXAMPLES)
    assert worker.wait() == 0, worker.log
    assert "mail to ann@example.com" in worker.log

    output = rig.path / "output"
    with foreign.working(**at, output=output):
        rig.client.enqueue("thumbnail", ["cat.png"], queue="thumbnails")
        job = rig.client.enqueue("thumbnail", ["broken.png"], queue="thumbnails")
        [failed] = eventually(lambda: rig.inspector.failed.list().rows)
        rig.inspector.failed.requeue([job.id])
        [again] = eventually(lambda: [row for row in rig.inspector.failed.list().rows if row["retries"] == 1])
        rig.palermo("failed", "requeue", job.id, "--args", '["dog.png"]')
        eventually(lambda: "dog.png" in output.read_text())

    assert output.read_text() == "thumbnail of cat.png\nthumbnail of dog.png\n"
    expected = (job.id, "thumbnail", "thumbnails", ["broken.png"])
    assert (failed["id"], failed["job"], failed["queue"], failed["args"]) == expected
    assert (failed["error"]["message"], failed["retries"]) == ("cannot read broken.png", 0)
    assert [attempt["message"] for attempt in again["attempts"]] == ["cannot read broken.png"] * 2


@pytest.mark.slow
def test_a_step_runs_in_another_language_and_is_requeued(
    foreign: ForeignClient, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "RARELY", 0.1)
    rig.launch([sys.executable, "-m", "palermo", "worker", "gallery", "-q", "jobs"], cwd=clients.EXAMPLES)
    with foreign.working(rig.url, exchange=rig.exchange, output=rig.path / "output"):
        job = rig.client.enqueue("gallery.gallery", [["cat.png", "broken.png", "dog.png"]])
        [failed] = eventually(lambda: rig.inspector.failed.list().rows)
        assert (failed["id"], failed["args"]) == (f"{job.id}/thumbnail-2", ["uploads/broken.png"])
        rig.palermo("failed", "requeue", failed["id"], "--args", '["owl.png"]')

        # The workflow may have failed in between; its result would raise that error.
        eventually(lambda: job.status() == "done")
        published = "uploads/cat.png.small, owl.png.small, uploads/dog.png.small"
        assert job.result(timeout=60) == f"published {published}"


def test_the_guide_shows_parts_of_the_programs_that_run_here() -> None:
    def unindented(code: str) -> str:
        return "\n".join(line.strip() for line in code.splitlines())

    programs = [unindented(program.read_text()) for program in clients.EXAMPLES.glob("shop.*")]
    shown = [unindented(block.code) for block in blocks(_GUIDE) if block.language in ("js", "ruby", "php", "go")]

    assert len(shown) == 9
    assert [code for code in shown if not any(code in program for program in programs)] == []
    [gallery] = [block.code for block in blocks(_GUIDE) if "def gallery" in block.code]
    assert (clients.EXAMPLES / "gallery.py").read_text().endswith(gallery)
