"""The bare client, to which all are compared."""

from benchmarks.peers.systems.system import System

SYSTEM = System(
    name="raw",
    distributions=("pika",),
    imports="import pika",
    isolation={"process": "no: in the process of the connection", "async": "no: in the process of the connection"},
    many=True,
    quorum=True,
    worker=lambda setup: ["-m", "benchmarks.peers.apps.raw"],
    ours=True,
)
