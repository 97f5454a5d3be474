"""The pages of workers: the stacks of their jobs, what they use, their releases, and orders to many of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from palermo.settings.settings import Settings
from palermo.webui.render.stacks import stacks_of
from tests.helpers import eventually
from tests.webui.server import Web
from tests.worker.site import Site

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
def site(any_settings: Settings, tmp_path: Path) -> Iterator[Site]:
    """Workers on the broker whose pages are served."""
    site = Site(tmp_path, url=any_settings.url, exchange=any_settings.exchange)
    yield site
    site.close()


def test_the_frames_of_the_job_come_first_and_those_of_the_worker_apart() -> None:
    job, other, worker = stacks_of(_PLAIN)

    assert [frame.function for frame in job.job] == ["get", "resize"]
    assert [frame.function for frame in job.worker] == ["call", "_steps", "worker"]
    assert ([frame.own for frame in job.job], job.title) == ([False, True], "Current thread 0x03")
    assert ([frame.function for frame in other.job], other.worker) == (["inner", "run"], ())
    assert (worker.job, [frame.function for frame in worker.worker]) == ((), ["wait", "_run"])


def test_the_stack_of_a_coroutine_begins_with_the_call_that_it_awaits() -> None:
    [stack] = stacks_of(_AWAITS)

    assert [(frame.function, frame.source) for frame in stack.job] == [
        ("sleep", ("return await future",)),
        ("fetch", ("await asyncio.sleep(t)",)),
    ]
    assert [frame.function for frame in stack.worker] == ["within"]


@pytest.mark.parametrize("text", ["", "\n\n", "it gave no answer within 2 s", '  File "a", line 1, in b', "  x\ny"])
def test_a_text_that_is_no_stack_is_shown_as_it_is(text: str) -> None:
    found = stacks_of(text)

    said = " ".join(part for stack in found for part in (stack.title, *stack.rest))
    assert text.split() == said.split() or [frame.path for stack in found for frame in stack.job] == ["a"]


def test_the_page_of_stacks_shows_the_job_and_folds_the_worker(any_web: Web, site: Site) -> None:
    site.start("--log-level", "warning")
    id = site.hold()
    eventually(lambda: "held begins" in site.notes())

    def stacks() -> str:
        """Of a slot that gets no turn for 2 s there are none."""
        page = any_web.form("/workers", "/workers/stack", worker=site.worker()["id"]).text
        return "" if "it gave no answer" in page else page

    page = eventually(stacks)

    shown, _, folded = page.partition(" of the worker</summary>")
    assert f"/jobs/{id}" in shown
    assert "in hold" in shown
    assert "executor.py" not in shown
    assert "executor.py" in folded
    assert "\n\nworker:\n" in folded
