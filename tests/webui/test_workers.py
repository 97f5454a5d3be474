"""The pages of workers: the stacks of their jobs, what they use, their releases, and orders to many of them."""

import json
import logging
import re
import signal
from html import unescape
from types import SimpleNamespace
from typing import cast
from urllib.parse import quote

import pytest

from palermo.core.version import VERSION
from palermo.history import worker_lives
from palermo.inspector.doctor import examine
from palermo.inspector.inspector import Inspector
from palermo.webui import tuning
from palermo.webui.render.tracebacks import stacks_of
from palermo.webui.state import usage
from tests.harness.rig import Rig
from tests.helpers import eventually
from tests.rabbitmq.patience import have_patience
from tests.webui.server import Web

_PLAIN = """\
Thread 0x01 (most recent call first):
  File "/srv/shop/tasks.py", line 3 in inner
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x02 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in wait
  File "/site/palermo/worker/child/reporting.py", line 9 in _run

Current thread 0x03 (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 180 in get
  File "/srv/shop/tasks.py", line 7 in resize
  File "/site/palermo/jobs/definition.py", line 200 in call
  File "/site/palermo/worker/child/executor.py", line 298 in _steps
  File "/site/palermo/cli/worker.py", line 211 in worker
"""

_AWAITS = """\
Task shop.fetch 7c9e:
  File "/site/palermo/worker/child/interrupts.py", line 179, in within
    return await coroutine
  File "/srv/shop/tasks.py", line 14, in fetch
    await asyncio.sleep(t)
  File "/usr/lib/python3.11/asyncio/tasks.py", line 649, in sleep
    return await future
"""


@pytest.fixture
def workers_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look at the workers shows each that lives: on a busy machine it may answer after seconds."""
    have_patience(monkeypatch)


def test_the_frames_of_the_job_come_first_and_those_of_the_worker_apart() -> None:
    job, other, worker = stacks_of(_PLAIN)

    assert [frame.function for frame in job.job] == ["get", "resize"]
    assert [frame.function for frame in job.worker] == ["call", "_steps", "worker"]
    assert ([frame.own for frame in job.job], job.title) == ([False, True], "Current thread 0x03")
    assert ([frame.function for frame in other.job], other.worker) == (["inner", "run"], ())
    assert (worker.job, [frame.function for frame in worker.worker]) == ((), ["wait", "_run"])
    # The stack of a coroutine begins with the call that it awaits.
    [stack] = stacks_of(_AWAITS)
    awaits = [("sleep", ("return await future",)), ("fetch", ("await asyncio.sleep(t)",))]
    assert [(frame.function, frame.source) for frame in stack.job] == awaits
    assert [frame.function for frame in stack.worker] == ["within"]


@pytest.mark.parametrize("text", ["", "\n\n", "it gave no answer within 2 s", '  File "a", line 1, in b', "  x\ny"])
def test_a_text_that_is_no_stack_is_shown_as_it_is(text: str) -> None:
    found = stacks_of(text)

    said = " ".join(part for stack in found for part in (stack.title, *stack.rest))
    assert text.split() == said.split() or [frame.path for stack in found for frame in stack.job] == ["a"]


@pytest.mark.usefixtures("workers_have_time")
def test_several_workers_are_stopped_when_their_number_is_typed(
    web: Web, rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    for chosen, said in (
        ([], "Select some workers first."),
        (["pid:0@gone"], "None of these workers is alive any more."),
    ):
        page = web.http.get("/workers/confirm", params={"act": "kill", "id": chosen}, follow_redirects=True)
        assert said in page.text
    assert web.http.get("/workers/confirm", params={"act": "dance", "id": ["a"]}).status_code == 422
    processes = [rig.worker("--log-level", "warning") for _ in range(3)]

    def idle() -> list[str]:
        found = [row["id"] for row in rig.workers() if row["state"] == "idle"]
        return found if len(found) == 3 else []

    ids = eventually(idle)
    eventually(lambda: "slots, 3 workers" in web.http.get("/").text)

    def asked() -> bool:
        page = web.http.get("/workers/confirm", params={"act": "stop", "id": [*ids[:2], "pid:0@gone"]}).text
        return "Stop 2 workers?" in page and "Type their number, 2, to confirm" in page

    eventually(asked)
    assert web.form("/workers", "/workers/stop", worker=ids[:2], number="2", typed="3").status_code == 422
    assert eventually(idle) == ids
    assert web.form("/workers", "/workers/stop", number="2", typed="2").status_code == 422
    with caplog.at_level(logging.INFO, logger="palermo.audit"):
        done = web.form("/workers", "/workers/stop", worker=[*ids[:2], "pid:0@gone"], number="3", typed="3")

    assert "Asked 2 workers to finish the running jobs and end. 1 had already ended." in done.text
    eventually(lambda: [row["id"] for row in rig.workers()] == ids[2:])
    [line] = [text for text in caplog.messages if text.startswith("worker stop by=local")]
    assert ids[0] in line
    assert sum(process.alive for process in processes) >= 1
    history = rig.inspector.history
    [action] = eventually(lambda: [row for row in history.audit().rows if row["action"] == "stop workers"])
    assert (action["by"], action["count"], ids[1] in action["what"]) == ("local", 2, True)
    eventually(lambda: ">2 workers</span>" in web.http.get("/audit").text)


@pytest.mark.usefixtures("workers_have_time")
def test_a_worker_shows_its_release_and_what_it_uses_until_it_ends(web: Web, rig: Rig) -> None:
    process = rig.worker("--log-level", "warning", PALERMO_RELEASE="2.14.0")
    eventually(rig.workers)
    path = f"/workers/{rig.only_worker()['id']}"

    first = web.http.get(path).text
    assert ">since <time" in first
    plots = [json.loads(unescape(text)) for text in re.findall(r'data-plot="([^"]+)"', first)]
    assert [plot["unit"] for plot in plots] == ["bytes", "percent"]
    assert [value for (value,) in plots[0]["rows"] if value is not None][-1] > 10_000_000
    assert [value for (value,) in plots[1]["rows"] if value is not None] == []
    # The page of all workers asks none: it shows what is known, and is told when there is more.
    eventually(lambda: re.search(r"\d+&nbsp;MB, \d+&nbsp;%", web.http.get("/workers").text))
    eventually(lambda: re.search(r"<dt>CPU</dt><dd>\d+ <small>%", web.http.get(path).text))
    web.page(path, ", on this worker", "<dt>Leader for</dt><dd>scheduled jobs")

    rig.worker("--log-level", "warning", PALERMO_RELEASE="2.15.0")

    def told() -> bool:
        page, workers = web.http.get(path).text, web.http.get("/workers").text
        releases = re.search(r"Releases: .*2\.1[45]\.0</b> on 1 worker, ", workers)
        assert f"<dt>Palermo</dt><dd>{VERSION}</dd>" in page
        return releases is not None and "2.14.0" in page and workers.count("old release</span>") == 1

    eventually(told)
    process.send(signal.SIGTERM)
    process.wait()
    eventually(lambda: ">ended</span>" in web.http.get(path).text)
    assert "Workers that died" not in web.http.get("/workers").text


def test_parts_of_the_last_ten_minutes_have_the_most_that_was_used() -> None:
    used = ((1_000.0, 50e6, 1.0), (1_010.0, 80e6, 6.0), (1_200.0, 60e6, 6.0), (1_204.0, None, None))
    answers = [usage.Answer(*each) for each in used]

    parts = usage.parts(answers, 1_205.0)

    start = usage.begin(1_205.0)
    at = {start + nth * usage.PART: part for nth, part in enumerate(parts) if part != usage.Part()}
    # 5 s of processor time in 10 s; after a gap an answer holds for half a minute before it.
    assert at[1_000.0] == at[1_010.0] == usage.Part(80e6, 50.0)
    assert at[1_170.0] == at[1_200.0] == usage.Part(60e6, 0.0)
    assert set(at) == {1_000.0, 1_010.0, 1_170.0, 1_180.0, 1_190.0, 1_200.0}
    assert usage.newest(parts) == usage.Part(60e6, 0.0)


def test_what_workers_used_is_bounded_and_forgotten_with_them() -> None:
    workers = SimpleNamespace(usage=lambda ids: [{"worker": id, "memory": 1, "cpu": 0.0} for id in ids])
    asked = cast(Inspector, SimpleNamespace(workers=workers))
    known = usage.WorkerUsage(asked)
    many = [{"id": f"{nth}", "answers": nth != 3} for nth in range(tuning.LIMIT + 9)]

    known.ask(many, 1_000.0)
    known.ask(many, 1_001.0)

    assert known.version == 1
    assert [len(known.answers(id, 1_000.0)) for id in ("2", "3", f"{tuning.LIMIT + 8}")] == [1, 0, 0]
    assert known.answers("2", 1_000.0 + tuning.WINDOW) == []
    known.ask(many[:1], 1_010.0)
    assert (known.answers("2", 1_010.0), len(known.answers("0", 1_010.0))) == ([], 2)


def test_a_workers_stacks_and_death_are_shown_everywhere(web: Web, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_lives, "GRACE", 1.0)
    id = rig.hold()
    worker = rig.worker("-q", "jobs")
    eventually(lambda: rig.lines() == ["held begins"])
    name = rig.only_worker()["id"]
    web.page("/stats.txt", "palermo.in_progress=1\n", "palermo.working=1\n")

    def stacks() -> str:
        """Of a slot that gets no turn for 2 s there are none."""
        page = web.form("/workers", "/workers/stack", worker=name).text
        return "" if "it gave no answer" in page else page

    shown, _, folded = eventually(stacks).partition(" of the worker</summary>")
    assert f"/jobs/{id}" in shown
    assert ("in hold" in shown, "executor.py" in shown) == (True, False)
    assert "executor.py" in folded
    assert "\n\nworker:\n" in folded
    eventually(lambda: "Running" in web.http.get(f"/jobs/{id}").text)
    eventually(lambda: [row["kind"] for row in rig.inspector.history.timeline(id)] == ["enqueued", "started"])
    of_job = web.press(web.http.get(f"/jobs/{id}"), "/workers/stack")
    assert ("in hold" in of_job.text, f'<a class="mono" href="/jobs/{id}"' in of_job.text) == (True, True)
    of_another = web.form("/workers", "/workers/stack", worker=name, job="another")
    assert "It no longer runs this job." in of_another.text

    worker.send(signal.SIGKILL)
    other = rig.worker("-q", "jobs")
    eventually(lambda: rig.lines().count("held begins") == 2)
    rig.open_gate()
    rig.ready(other)

    eventually(lambda: "Workers that died" in web.http.get("/workers").text)
    [problem] = [row for row in web.http.get("/api/problems").json()["rows"] if row["kind"] == "died"]
    assert problem["text"] == f"1 worker died in the last hour: {name}. Running: crew.hold {id}"
    assert problem["names"] == [name]
    assert problem["text"] in [finding.text for finding in examine(web.client, [])]
    page = web.http.get(f"/workers/{quote(name, safe='')}")
    assert page.status_code == 200
    assert "It stopped reporting" in page.text
    assert f"/jobs/{id}" in page.text
    assert "Workers that died" in web.http.get("/audit").text
    steps = re.findall(r'<div class="what">([^<]+)</div>', web.page(f"/jobs/{id}", ">Done</div>"))
    assert steps == ["Enqueued", "Started", "Worker died", "Started", "Done"]
