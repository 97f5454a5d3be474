"""carmine's handling of messages (C1 to C6, C9, C11), and the reliable queue of Tuleap on Redis (U1 to U5)."""

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from palermo.client.handle import Job
from palermo.core.address import parse_url
from palermo.core.message import Message
from palermo.core.topics import OCTETS
from tests import redis_node
from tests.harness.rig import Rig
from tests.helpers import eventually, has_traceback
from tests.rabbitmq_node import free_port
from tests.tcp_proxy import TcpProxy

HANDLED = ("handled",)


def test_C1_an_id_is_the_callers_and_asked_for_twice_it_is_answered_with_the_first_job(rig: Rig) -> None:
    enqueue = partial(rig.client.enqueue, "shop.note", id="order-7", unique="until_done")
    first, second = enqueue(["first"]), enqueue(["second"])

    assert (first.id, first.enqueued) == ("order-7", True)
    assert (second.id, second.enqueued, second.duplicate) == ("order-7", False, "waiting")
    (row,) = rig.inspector.jobs("jobs").rows
    assert (row["id"], row["args"]) == ("order-7", ["first"])


def test_C1_a_unique_job_is_unique_by_its_name_alone_once_a_worker_with_it_has_run(rig: Rig) -> None:
    assert "nothing is known of the code of" in rig.run("enqueue", "singles.sync", "-q", "other").stderr
    rig.burst(modules=("singles",))

    first = rig.run("enqueue", "singles.sync", "--args", '["eu"]')
    again = rig.run("enqueue", "singles.sync", "--kwargs", '{"full": false, "shop": "eu"}')
    other = rig.client.enqueue("singles.sync", ["us"])
    many = rig.client.enqueue_many([("singles.sync", [shop], {}) for shop in ("us", "eu", "asia")])
    in_code = rig.python("import palermo, singles; print(singles.sync.enqueue('asia').id)")

    assert again.stdout == first.stdout
    assert "waiting" in again.stderr
    assert "not unique" not in first.stderr
    assert (other.enqueued, [job.enqueued for job in many]) == (True, [False, False, True])
    assert in_code == f"{many[2].id}\n"
    assert [row["args"] for row in rig.inspector.jobs("jobs")] == [["eu"], ["us"], ["asia"]]


def test_C1_a_unique_job_whose_key_only_its_code_makes_is_refused_by_its_name(rig: Rig) -> None:
    rig.burst(modules=("singles",))

    refused = rig.run("enqueue", "singles.index", "--args", "[1]")
    rig.palermo("enqueue", "singles.index", "--args", "[1]", "--unique-key", "page 1")
    again = rig.run("enqueue", "singles.index", "--args", "[1]", "--import", "singles")

    (line,) = refused.stderr.splitlines()
    assert refused.returncode == 2
    assert "its key is made by a function" in line
    assert "--unique-key" in line
    assert "waiting" in again.stderr
    assert rig.pending() == 1


def test_C1_a_job_that_is_declared_unique_no_more_is_plain_once_its_worker_has_started(rig: Rig) -> None:
    rig.burst(modules=("singles",))
    (rig.path / "singles.py").write_text("import palermo\n\n@palermo.job\ndef sync(shop):\n    pass\n")
    path = f"{rig.path}:{rig.environment['PYTHONPATH']}"

    rig.burst(modules=("singles",), PYTHONPATH=path)

    assert [bool(rig.client.enqueue("singles.sync", ["eu"])) for _ in range(2)] == [True, True]


def test_C3_a_delay_at_first_one_that_the_handler_names_and_a_time_in_which_it_is_not_done_again(rig: Rig) -> None:
    enqueue = partial(rig.client.enqueue, id="hook-1", dedupe=600.0)
    begun = time.time()
    enqueue("handled.retry", ["late", 0.4], delay=0.6)

    rig.worker(modules=HANDLED)
    times = [float(line.split()[2]) for line in rig.await_lines(3)]

    assert times[0] >= begun + 0.6
    assert all(after >= before + 0.4 for before, after in pairwise(times))
    eventually(lambda: [row["state"] for row in rig.inspector.unique_keys()] == ["closed"])
    assert not enqueue("handled.success", ["again"]).enqueued
    assert len(rig.lines()) == 3


def test_C6_what_waits_gets_new_arguments_and_what_runs_is_run_once_more(rig: Rig) -> None:
    def enqueue(on_duplicate: str, text: str) -> Job:
        return rig.client.enqueue(
            "shop.hold", [text], unique="until_done", unique_key="page", on_duplicate=on_duplicate
        )

    enqueue("return", "old")
    assert enqueue("replace", "new").duplicate == "waiting"
    worker = rig.worker("-c", "2")
    assert rig.await_lines(1) == ["new begins"]
    for _ in range(3):
        enqueue("rerun", "again")
    rig.open_gate()

    assert rig.await_lines(4) == ["new begins", "new ends", "again begins", "again ends"]
    rig.ready(worker)
    eventually(lambda: rig.inspector.unique_keys() == [])
    assert rig.pending() == 0


def test_C11_the_size_of_a_queue_is_told_and_sets_the_pace(rig: Rig) -> None:
    worker = rig.worker("-q", "jobs,bulk", modules=("shop", "paced"))
    rig.await_lines(2, "sizes")  # the worker keeps the pace of the first answer when it asks again

    rig.client.enqueue_many([("shop.note", (f"{number}",), {}) for number in range(4)])

    eventually(lambda: rig.lines("sizes")[-1] == "jobs 3")
    assert rig.await_lines(1) == ["0"]
    rig.open_gate("hurry")
    rig.await_lines(4)
    eventually(lambda: rig.lines("sizes")[-1] == "jobs 0")
    assert worker.alive


def test_U4_a_default_job_takes_the_messages_that_another_program_publishes(rig: Rig) -> None:
    def publish(queue: str, body: bytes) -> None:
        if rig.on_rabbitmq:
            rig.put(queue, body)
        else:
            message = Message(id=str(uuid.uuid4()), queue=queue, job="", body=body, content_type=OCTETS)
            rig.client.run(lambda broker: broker.publish(message))

    rig.ready(rig.worker("-c", "2", modules=("defaults",)))

    publish("event_queue", b'{"event_name": "made", "payload": {"id": 7}}')
    publish("event_queue", b'{"event_name": "broken", "payload": "no"}')
    publish("octets", b"\xff[")
    publish("texts", "1 €".encode())

    rig.await_lines(3)
    ((id, row),) = eventually(rig.failed).items()
    assert (row["job"], row["kwargs"]) == ("defaults.handle", {"event_name": "broken", "payload": "no"})
    rig.open_gate("mended")
    rig.palermo("failed", "requeue", id)
    assert sorted(rig.await_lines(4)) == [
        "defaults.handle: broken 'no'",
        "defaults.handle: made {'id': 7}",
        "octets: b'\\xff['",
        "texts: '1 €'",
    ]


def test_L_a_job_that_the_message_names_takes_octets_as_json_or_as_bytes(rig: Rig) -> None:
    rig.ready(rig.worker(modules=("defaults",)))

    for number, body in enumerate((b"\xff[", b'{"body": 7}')):
        message = Message(id=f"o{number}", queue="octets", job="defaults.named", body=body, content_type=OCTETS)
        rig.client.run(lambda broker, message=message: broker.publish(message))

    assert sorted(rig.await_lines(2)) == ["named: 7", "named: b'\\xff['"]


ENQUEUES_ON_AND_ON = """
import palermo

for number in range(100_000):
    print(palermo.enqueue("shop.note", [f"{number}"]).id, flush=True)
"""


def test_C9_a_program_that_is_killed_while_it_enqueues_leaves_each_job_whole_or_not_at_all(rig: Rig) -> None:
    command = [sys.executable, "-c", ENQUEUES_ON_AND_ON]
    with subprocess.Popen(command, env=rig.environment, cwd=rig.path, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        confirmed = [program.stdout.readline().strip() for _ in range(40)]
        program.kill()
        confirmed += program.stdout.read().split()

    rows = rig.inspector.jobs("jobs", limit=len(confirmed) + 10).rows
    ids = [row["id"] for row in rows]
    assert ids[: len(confirmed)] == confirmed
    assert len(ids) <= len(confirmed) + 1
    assert [row["args"] for row in rows] == [[f"{number}"] for number in range(len(rows))]


def test_C2_the_job_of_a_worker_that_dies_is_run_by_another_at_once(rig: Rig) -> None:
    rig.enqueue("hold", "long")
    victim = rig.worker()
    rig.await_lines(1)
    other = rig.worker()
    rig.ready(other)

    victim.kill9()

    assert rig.await_lines(2, within=20) == ["long begins", "long begins"]
    rig.open_gate()
    assert rig.await_lines(3)[2] == "long ends"
    assert rig.failed() == {}


def test_C2_the_job_of_a_run_that_hangs_is_freed_after_its_lock_and_the_run_is_dead_by_then(rig: Rig) -> None:
    rig.client.enqueue("handled.hang", ("again",), {}, lock_for=3.0)

    rig.burst(modules=HANDLED)

    hung, first, *more = rig.lines()
    assert hung.endswith(" hangs")
    # On a machine that stands still another run may outlast its lock, before or after its line.
    assert first in ("again False 2", "again False 3")
    assert set(more) <= {"again False 3"}
    assert rig.failed() == {}


def test_C4_a_handler_ends_in_success_error_or_retry_with_a_delay(rig: Rig) -> None:
    done = rig.client.enqueue("handled.success", ("fine",), {}, keep_result=True)
    failed = rig.client.enqueue("handled.error", ("wrong",), {})
    again = rig.client.enqueue("handled.retry", ("later", 0.5), {}, keep_result=True)

    rig.worker("-c", "3", modules=HANDLED)
    lines = rig.await_lines(4)

    times = [float(line.split()[2]) for line in lines if line.startswith("later")]
    assert [after - before >= 0.5 for before, after in pairwise(times)] == [True, True]
    assert "fine" in lines
    # What is raised is an error, and no more is made of it than was asked for.
    eventually(lambda: rig.errors() == {failed.id: ("ValueError", "wrong")})
    eventually(lambda: [job.status() == "done" for job in (done, again)] == [True, True])


def test_C5_the_attempts_of_a_job_are_counted_kept_and_shown(rig: Rig) -> None:
    job = rig.client.enqueue("handled.retry", ("counted", 0.0), {}, keep_result=True)
    failing = rig.client.enqueue("handled.error_for_long", ("wrong",), {}, retries=2)
    rig.worker(modules=HANDLED)

    counted = [line.split()[1] for line in rig.await_lines(3)]

    assert counted == ["1", "2", "3"]
    eventually(lambda: job.status() == "done")
    assert job.status().attempt == 3
    (retrying,) = eventually(lambda: rig.inspector.retries().rows)
    assert (retrying["id"], retrying["retries"], [tried["attempt"] for tried in retrying["attempts"]]) == (
        failing.id,
        1,
        [1],
    )


def test_U1_a_job_is_its_workers_own_while_it_runs_and_gone_only_when_it_is_done(rig: Rig) -> None:
    id = rig.enqueue("hold", "the job")
    workers = [rig.worker() for _ in range(2)]
    rig.await_lines(1)
    rig.enqueue("note", "the next")

    rig.await_lines(2)
    eventually(lambda: [[job["id"] for job in row["jobs"]] for row in rig.workers() if row["jobs"]] == [[id]])
    eventually(lambda: in_jobs(rig) == (0, 1))

    rig.open_gate()
    rig.await_lines(3)
    eventually(lambda: in_jobs(rig) == (0, 0))
    rig.ready(*workers)
    assert rig.lines() == ["the job begins", "the next", "the job ends"]


def in_jobs(rig: Rig) -> tuple[int, int]:
    """How many jobs wait in the queue jobs, and how many workers hold."""
    (row,) = (row for row in rig.inspector.queues() if row["name"] == "jobs")
    return row["pending"], row["in_progress"]


def test_U5_a_decorator_a_worker_and_a_doctor_are_all_that_a_beginner_needs(rig: Rig) -> None:
    program = "import palermo\n\n@palermo.job\ndef greet(name):\n    open('greeted', 'w').write(name)\n"
    (rig.path / "tiny.py").write_text(program)

    rig.python("import tiny; tiny.greet.enqueue('Ada')")
    rig.burst(modules=("tiny",))

    assert (rig.path / "greeted").read_text() == "Ada"
    assert rig.palermo("doctor").splitlines()[-1].startswith("0 problems")


def test_U2_what_ran_in_a_worker_that_crashed_goes_before_what_waits(rig: Rig) -> None:
    rig.enqueue("hold", "running")
    victim = rig.worker()
    rig.await_lines(1)
    for number in range(3):
        rig.enqueue("note", f"{number}")

    victim.kill9()
    # The broker may hear of its end later than of the next worker.
    eventually(lambda: rig.pending() == 4)
    rig.worker()

    assert rig.await_lines(2)[1] == "running begins"
    rig.open_gate()
    assert rig.await_lines(6)[2:] == ["running ends", "0", "1", "2"]


CAUTIOUS = """
import palermo


@palermo.job(queue="narrow")
class Narrow:
    def process(self, text): ...

    @classmethod
    def before_enqueue(cls, text):
        waiting = {row["name"]: row["pending"] for row in palermo.inspector().queues()}
        return waiting.get("narrow", 0) < 2


print([Narrow.enqueue(f"{number}").enqueued for number in range(4)])
"""


def test_C11_what_enqueues_is_throttled_by_the_size_of_the_queue_and_somebody_is_told_of_it(rig: Rig) -> None:
    assert rig.python(CAUTIOUS).strip() == "[True, True, False, False]"

    assert rig.palermo("check", "--max-pending", "2").startswith("ok")
    told = rig.palermo("check", "--max-pending", "1", code=1)
    assert "narrow" in told
    assert "2" in told


@dataclass(frozen=True)
class Proxied:
    """A broker with a proxy before it."""

    url: str
    proxy: TcpProxy
    #: The broker behind the proxy.
    through: str


@pytest.fixture(params=["rabbitmq", "redis"])
def proxied(request: pytest.FixtureRequest) -> Iterator[Proxied]:
    if request.param == "redis":
        port = free_port()
        with redis_node.running("--port", str(port)) as node, TcpProxy("127.0.0.1", port) as proxy:
            yield Proxied(node.url, proxy, f"redis://127.0.0.1:{proxy.port}")
        return
    url: str = request.getfixturevalue("rabbitmq_url")
    address = parse_url(url)
    vhost = "%2F" if address.vhost == "/" else address.vhost
    with TcpProxy(*address.hosts[0]) as proxy:
        yield Proxied(url, proxy, f"amqp://{address.username}:{address.password}@127.0.0.1:{proxy.port}/{vhost}")


@pytest.mark.parametrize("queues", ["jobs", "jobs,mail"], ids=["push", "poll"])
def test_U3_a_worker_that_lost_its_connection_listens_again_and_says_nothing_worse_than_that(
    proxied: Proxied, exchange: str, tmp_path: Path, queues: str
) -> None:
    proxy = proxied.proxy
    with Rig(tmp_path, proxied.url, exchange, module="shop") as rig:
        worker = rig.worker("-q", queues, PALERMO_URL=proxied.through)
        rig.ready(worker)

        for number in range(3):
            connected = worker.log.count("connected broker=")
            proxy.hang_up(reset=number % 2 == 0)
            eventually(lambda before=connected: worker.log.count("connected broker=") > before)  # type: ignore[misc]
            rig.enqueue("note", f"{number}")
            eventually(lambda text=f"{number}": text in rig.lines())  # type: ignore[misc]
            # Until it is acknowledged: cut before that it would be run again.
            rig.ready(worker)

        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        # An acknowledgement that is still on its way through the proxy is lost with the line: then a job runs again.
        assert list(dict.fromkeys(rig.lines())) == ["0", "1", "2"]
        assert "ERROR" not in worker.log
        assert not has_traceback(worker.log)


def test_U3_other_errors_are_not_silent(rig: Rig) -> None:
    worker = rig.worker(PALERMO_URL="amqp://127.0.0.1:1/?no_such_option=1")

    assert worker.wait() == 2
    assert "no_such_option" in worker.log
