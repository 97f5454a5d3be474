"""What RabbitMQ alone decides: passwords, and what is kept of the messages of other programs."""

from tests.harness.processes import title
from tests.harness.rig import Rig
from tests.rabbitmq_node import Node, add_user, set_permissions, url_of

SECRET = "s3cr3t-p4ss"

#: Jobs that take messages of programs that know nothing of Palermo.
DEFAULTS = """
import palermo
from shop import write

@palermo.job(queue="event_queue", default=True)
def handle(event_name, payload):
    write("notes", f"{palermo.current_job().job}: {event_name} {payload!r}")

@palermo.job(queue="octets", default=True)
def take(body: bytes):
    write("notes", f"octets: {body!r}")
"""


def test_the_password_in_a_url_or_a_file_is_never_shown(rabbitmq_rig: Rig, shared_node: Node) -> None:
    rig, name = rabbitmq_rig, rabbitmq_rig.exchange
    add_user(shared_node, name, SECRET)
    set_permissions(shared_node, name, ".*", ".*", ".*")
    (rig.path / "password").write_text(f"{SECRET}\n")
    rig.environment["PALERMO_URL"] = "amqp://127.0.0.1:1/"
    parts = ["--host", shared_node.host, "--port", f"{shared_node.port}", "--user", name, "--password-file", "password"]
    whole = ["--url", url_of(shared_node, user=name, password=SECRET)]

    done = [rig.run("enqueue", "shop.hold", "--args", '["x"]', "-q", "jobs", *flags) for flags in (parts, whole)]
    workers = [rig.worker("-q", "jobs", *flags) for flags in (parts, whole)]
    rig.await_lines(2)
    titles = "".join(title(pid) for worker in workers for pid in worker.tree())
    done += [rig.run("workers", *flags) for flags in (parts, whole)]
    rig.open_gate()
    rig.await_lines(4)

    assert [each.returncode for each in done] == [0] * 4
    shown = [titles, *(worker.log for worker in workers), *(each.stdout + each.stderr for each in done)]
    assert not any(SECRET in text for text in shown)
    assert "palermo worker" in titles
    assert all(name in worker.log for worker in workers)


def test_a_default_job_takes_what_another_program_publishes(rabbitmq_rig: Rig) -> None:
    rig = rabbitmq_rig
    (rig.path / "defaults.py").write_text(DEFAULTS)
    rig.ready(rig.worker("-c", "2", modules=("defaults",)))

    rig.put("event_queue", b'{"event_name": "made", "payload": {"id": 7}}')
    rig.put("octets", b"\xff[")

    assert sorted(rig.await_lines(2)) == ["defaults.handle: made {'id': 7}", "octets: b'\\xff['"]
    assert rig.failed() == {}
