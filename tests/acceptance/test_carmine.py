"""carmine's handling of messages (C2, C4, C5), and the reliable queue of Tuleap on Redis (U2, U3)."""

import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from palermo.core.address import parse_url
from tests.acceptance.place import Place
from tests.helpers import eventually
from tests.tcp_proxy import TcpProxy

HANDLED = ("handled",)


def test_C2_the_job_of_a_worker_that_dies_is_run_by_another_at_once(place: Place) -> None:
    place.enqueue("hold", "long")
    victim = place.worker()
    place.await_lines(1)
    other = place.worker()
    place.ready(other)

    victim.kill9()

    assert place.await_lines(2, within=10) == ["long begins", "long begins"]
    place.open_gate()
    assert place.await_lines(3)[2] == "long ends"
    assert place.failed() == {}


def test_C2_the_job_of_a_run_that_hangs_is_freed_after_its_lock_and_the_run_is_dead_by_then(place: Place) -> None:
    place.client.enqueue("handled.hang", ("again",), {}, lock_for=1.0)

    place.burst(modules=HANDLED)

    hung, again = place.lines()
    assert hung.endswith(" hangs")
    assert again == "again False 2"
    assert place.failed() == {}


def test_C4_a_handler_ends_in_success_error_or_retry_with_a_delay(place: Place) -> None:
    done = place.client.enqueue("handled.success", ("fine",), {}, keep_result=True)
    failed = place.client.enqueue("handled.error", ("wrong",), {})
    again = place.client.enqueue("handled.retry", ("later", 0.5), {}, keep_result=True)

    place.worker("-c", "3", modules=HANDLED)
    lines = place.await_lines(4)

    times = [float(line.split()[2]) for line in lines if line.startswith("later")]
    assert [after - before >= 0.5 for before, after in pairwise(times)] == [True, True]
    assert "fine" in lines
    # What is raised is an error, and no more is made of it than was asked for.
    eventually(lambda: place.errors() == {failed.id: "ValueError: wrong"})
    eventually(lambda: [job.status() == "done" for job in (done, again)] == [True, True])


def test_C5_the_attempts_of_a_job_are_counted_kept_and_shown(place: Place) -> None:
    job = place.client.enqueue("handled.retry", ("counted", 0.0), {}, keep_result=True)
    failing = place.client.enqueue("handled.error", ("wrong",), {}, retries=2)
    place.worker(modules=HANDLED)

    counted = [line.split()[1] for line in place.await_lines(3)]

    assert counted == ["1", "2", "3"]
    eventually(lambda: job.status() == "done")
    assert job.status().attempt == 3
    (retrying,) = eventually(lambda: place.inspector.retries().rows)
    assert (retrying["id"], retrying["retries"], [tried["attempt"] for tried in retrying["attempts"]]) == (
        failing.id,
        1,
        [1],
    )


def test_U2_what_ran_in_a_worker_that_crashed_goes_before_what_waits(place: Place) -> None:
    place.enqueue("hold", "running")
    victim = place.worker()
    place.await_lines(1)
    for number in range(3):
        place.enqueue("note", f"{number}")

    victim.kill9()
    place.worker()

    assert place.await_lines(2)[1] == "running begins"
    place.open_gate()
    assert place.await_lines(6)[2:] == ["running ends", "0", "1", "2"]


@pytest.fixture
def proxy(rabbitmq_url: str) -> Iterator[TcpProxy]:
    with TcpProxy(*parse_url(rabbitmq_url).hosts[0]) as proxy:
        yield proxy


@pytest.mark.parametrize("queues", ["jobs", "jobs,mail"], ids=["push", "poll"])
def test_U3_a_worker_that_lost_its_connection_listens_again_and_says_nothing_worse_than_that(
    rabbitmq_url: str, exchange: str, tmp_path: Path, proxy: TcpProxy, queues: str
) -> None:
    address = parse_url(rabbitmq_url)
    vhost = "%2F" if address.vhost == "/" else address.vhost
    through = f"amqp://{address.username}:{address.password}@127.0.0.1:{proxy.port}/{vhost}"
    with Place(tmp_path, rabbitmq_url, exchange) as place:
        worker = place.worker("-q", queues, PALERMO_URL=through)
        place.ready(worker)

        for number in range(3):
            connected = worker.log.count("connected broker=")
            proxy.hang_up(reset=number % 2 == 0)
            eventually(lambda before=connected: worker.log.count("connected broker=") > before, within=30)  # type: ignore[misc]
            place.enqueue("note", f"{number}")
            place.await_lines(number + 1)
            # Until it is acknowledged: cut before that it would be run again.
            place.ready(worker)

        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
        assert place.lines() == ["0", "1", "2"]
        assert "ERROR" not in worker.log
        assert "Traceback" not in worker.log


def test_U3_other_errors_are_not_silent(place: Place) -> None:
    worker = place.worker(PALERMO_URL="amqp://127.0.0.1:1/?no_such_option=1")

    assert worker.wait() == 2
    assert "no_such_option" in worker.log
