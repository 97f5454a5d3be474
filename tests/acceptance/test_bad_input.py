"""Bad input: each kind is one clear line, without a traceback and without a password, and loses nothing.

What the commands say of wrong names, wrong arguments and brokers that are down is in tests/cli; of
brokers that refuse, in test_palermo_broker.py; of SQLite files, in tests/contract/test_sqlite_files.py.
"""

import resource
import socket
import subprocess
from collections.abc import Iterator

import pytest

from palermo.errors import BodyTooLarge, EncodeError, IdInvalid, QueueNameInvalid
from tests.harness.rig import COMMAND, Rig
from tests.helpers import HANGS, Stopwatch, eventually, has_traceback
from tests.rabbitmq_node import free_port


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def one_line(done: "subprocess.CompletedProcess[str]", code: int) -> str:
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    (line,) = done.stderr.splitlines()
    assert "Traceback" not in line
    return line


def test_a_broker_that_never_answers_is_given_up_within_the_setting(sqlite_rig: Rig, silent_port: int) -> None:
    url = f"amqp://me:s3cret@127.0.0.1:{silent_port}/"

    watch = Stopwatch()
    done = sqlite_rig.run("enqueue", "shop.note", "-q", "jobs", "--url", url, PALERMO_PUBLISH_TIMEOUT="1")
    took = watch.seconds()
    line = one_line(done, 3)
    assert "BrokerUnavailable" in line
    assert f"127.0.0.1:{silent_port}" in line
    assert "s3cret" not in line
    assert "did not answer within 1 s" in line
    assert took < 1 + 20  # and the interpreter's own start


def test_a_worker_whose_broker_is_down_says_so_each_time_in_one_line(sqlite_rig: Rig) -> None:
    port = free_port()
    worker = sqlite_rig.worker("--url", f"amqp://me:s3cret@127.0.0.1:{port}/")

    # One reading: the next line may come at any time.
    log = eventually(lambda: log if (log := worker.log).count("broker unavailable") >= 3 else "")

    lines = [line for line in log.splitlines() if "WARNING" in line]
    assert len(lines) == log.count("broker unavailable")
    assert all(f"127.0.0.1:{port}" in line and "retry_in=" in line for line in lines)
    assert "s3cret" not in log
    assert not has_traceback(log)
    assert worker.alive


@pytest.mark.parametrize(
    ("content", "code", "told"),
    [
        ("import nowhere_to_be_found", 1, "nowhere_to_be_found"),
        ("raise RuntimeError('amqp://me:s3cret@host is in this error')", 1, "RuntimeError"),
        ("def broken(:", 1, "SyntaxError"),
        ("", 1, "job"),
        (
            "import palermo\n@palermo.job(name='same')\ndef one(): ...\n@palermo.job(name='same')\ndef two(): ...\n",
            1,
            "same",
        ),
        ("import palermo\n@palermo.job(tenant=5)\ndef one(): ...\n", 1, "tenant"),
        ("import palermo\n@palermo.job(queue=' mail')\ndef one(): ...\n", 1, "' mail'"),
    ],
    ids=["import", "raises", "syntax", "no jobs", "name twice", "option of later", "queue name"],
)
def test_a_module_that_gives_a_worker_nothing_ends_it_with_the_reason(
    sqlite_rig: Rig, content: str, code: int, told: str
) -> None:
    (sqlite_rig.path / "odd.py").write_text(content)

    done = sqlite_rig.run("worker", "odd", "--burst")

    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert "s3cret" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("palermo: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", "0"],
        ["-q", "failed"],
        ["-q", ""],
        ["--accept", "nonsense"],
        ["--accept-only", "nonsense"],
        ["--shutdown-timeout", "soon"],
    ],
)
def test_a_worker_that_is_told_nonsense_ends_before_it_opens_anything(sqlite_rig: Rig, arguments: list[str]) -> None:
    one_line(sqlite_rig.run("worker", "shop", *arguments), 2)

    assert not list(sqlite_rig.path.glob("jobs.db*"))


def test_what_cannot_be_enqueued_is_refused_and_nothing_is_stored(rig: Rig) -> None:
    enqueue = rig.client.enqueue

    with pytest.raises(BodyTooLarge, match="must fit 16,777,216"):
        enqueue("shop.note", ["x" * 16 * 1024 * 1024])
    with pytest.raises(EncodeError, match=r'args\[0\]\["when"\]'):
        enqueue("shop.note", [{"when": object()}])
    for queue in ("", " mail", "mail ", "amq.mail", "~mail", "palermo.~x", "x" * 128, "failed", 5):
        with pytest.raises(QueueNameInvalid):
            enqueue("shop.note", ["x"], queue=queue)
    for id in (5, "", "x" * 256, b"x", "\ud800"):
        with pytest.raises(IdInvalid):
            enqueue("shop.note", ["x"], id=id)

    assert {row["name"]: row["pending"] for row in rig.inspector.queues()} == {"failed": 0}


def test_a_body_of_16_mebibytes_runs_and_its_failure_is_stored(rig: Rig) -> None:
    text = "x" * (16 * 1024 * 1024 - 4)  # and four bytes of ["…"]
    id = rig.enqueue("fail", text)

    rig.burst()

    (row,) = rig.failed().values()
    assert (row["id"], row["error"]["class"]) == (id, "ValueError")
    assert row["args"] == [text]


def test_headers_that_leave_no_room_for_the_failure_are_dropped_by_name_and_the_job_is_kept(
    rabbitmq_rig: Rig,
) -> None:
    rabbitmq_rig.enqueue("note", "makes the queue", queue="mail")
    headers = {"job-class": "shop.fail", "x-large": "y" * 120_000, "x-small": "kept"}
    rabbitmq_rig.put("mail", b'["text"]', headers=headers, message_id="m-1")

    rabbitmq_rig.burst("-q", "mail")

    properties, body = rabbitmq_rig.get("failed")
    assert (properties.message_id, body) == ("m-1", b'["text"]')
    assert properties.headers["exception-class"] == "ValueError"
    assert properties.headers["x-small"] == "kept"
    assert "x-large" in properties.headers or properties.headers["dropped-headers"] == "x-large"


#: What other programs may publish, and the class of the failure that it ends in.
MESSAGES: dict[str, tuple[bytes, dict[str, object], str]] = {
    "no job named": (b"[]", {"headers": {}}, "JobUnnamed"),
    "unknown job": (b"[]", {"headers": {"job-class": "nobody.knows"}}, "JobNotFound"),
    "no json": (b"[1,", {}, "DecodeError"),
    "no utf-8": (b'["\xff"]', {}, "DecodeError"),
    "unknown type": (b"x", {"content_type": "text/x-odd"}, "MediaTypeUnknown"),
    "pickle": (b"x", {"content_type": "application/x-pickle"}, "MediaTypeRefused"),
    "damaged gzip": (b"x", {"content_encoding": "gzip"}, "DecodeError"),
    "wrong arguments": (b"[1, 2, 3]", {}, "ArgumentsInvalid"),
    "header of a wrong type": (b'["x"]', {"headers": {"job-class": "shop.note", "retries": "two"}}, "HeaderInvalid"),
}


def test_every_message_that_cannot_be_run_is_a_failed_job_with_its_body_untouched(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    rig.enqueue("note", "makes the queue")
    for name, (body, properties, _) in MESSAGES.items():
        rig.put("jobs", body, **{"message_id": name, "headers": {"job-class": "shop.note"}, **properties})
    rig.enqueue("note", "after")

    log = rig.burst()

    assert rig.lines() == ["makes the queue", "after"]
    errors = {id: row["error"]["class"] for id, row in rig.failed().items()}
    assert errors == {name: f"palermo.errors.{error}" for name, (*_, error) in MESSAGES.items()}
    assert not has_traceback(log)

    def bodies() -> dict[str, bytes]:
        return {one.id: one.body for one in rig.client.run(lambda broker: broker.browse("failed")).messages}

    # After one look RabbitMQ may count a job less for an instant.
    eventually(lambda: bodies() == {name: body for name, (body, *_) in MESSAGES.items()})


@pytest.mark.parametrize("command", [["enqueue", "shop.note", "-q", "jobs"], ["worker", "shop", "--burst"]])
@pytest.mark.parametrize("file", ["not a database", "a folder", "a missing folder"])
def test_a_sqlite_file_that_cannot_be_one_is_one_line(sqlite_rig: Rig, command: list[str], file: str) -> None:
    path = sqlite_rig.path / "odd.db"
    match file:
        case "not a database":
            path.write_text("this is a letter, and it shall stay one. " * 200)
        case "a folder":
            path.mkdir()
        case _:
            path = sqlite_rig.path / "nowhere" / "odd.db"

    done = sqlite_rig.run(*command, "--url", f"sqlite:///{path}")

    assert done.returncode == 3, done.stderr
    assert done.stderr.splitlines()[-1].startswith("palermo: StoreInvalid")
    assert str(path) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_disk_that_is_full_refuses_the_job_in_one_line_and_keeps_those_it_has(sqlite_rig: Rig) -> None:
    rig = sqlite_rig
    ids = [rig.enqueue("note", "x" * 1_000) for _ in range(20)]
    rig.client.close()
    # Of any file, the log to which the job would be written first among them.
    size = 100_000

    done = subprocess.run(
        [COMMAND, "enqueue", "shop.note", "-q", "jobs", "--args", '["%s"]' % ("x" * 100_000)],
        env=rig.environment,
        cwd=rig.path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )

    assert done.returncode in (1, 3), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert [row["id"] for row in rig.inspector.jobs("jobs")] == ids
    rig.enqueue("note", "fits again")
