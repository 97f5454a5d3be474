"""Celery, without the talk of its workers among each other."""

from benchmarks.peers.setup import Setup
from benchmarks.peers.systems.system import System


def _worker(setup: Setup) -> list[str]:
    pool = {"process": "prefork", "thread": "threads"}[setup.pool]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "WARNING"]
    slots = ["-c", str(setup.slots), "-P", pool]
    return [
        "-m",
        "celery",
        "-A",
        "benchmarks.peers.apps.celery",
        "worker",
        "-Q",
        ",".join(setup.queues),
        *slots,
        *quiet,
    ]


SYSTEM = System(
    name="celery",
    distributions=("celery", "kombu", "amqp", "billiard"),
    # Celery itself loads its parts when they are used.
    imports="import celery.app.task, celery.app.amqp, kombu.transport.pyamqp",
    isolation={
        "process": "yes: a process per slot, none has the connection",
        "thread": "no: in threads of the process of the connection",
    },
    stores=("rabbitmq", "redis"),
    quorum=True,
    worker=_worker,
    environment=lambda setup: {"C_FORCE_ROOT": "1"},
)
