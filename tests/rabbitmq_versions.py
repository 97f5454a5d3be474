"""Other versions of RabbitMQ than the installed one, each in a small Debian of its own: tests/debian_root.py.

`python -m tests.rabbitmq_versions 4.3` prints the path of its server.
"""

import sys
from pathlib import Path

from tests.debian import NotInstalled
from tests.debian_root import scripts_of

#: The Debian suites that have a version. sid goes on to later ones: the tests print what they run on.
SUITES = {"3.10": "bookworm", "4.0": "trixie", "4.3": "sid"}

#: What the tests start.
_PROGRAMS = (
    "/usr/lib/rabbitmq/bin/rabbitmq-server",
    "/usr/lib/rabbitmq/bin/rabbitmqctl",
    "/usr/lib/erlang/bin/epmd",
    "/usr/lib/erlang/bin/erl_call",
)


def server_of(version: str) -> Path:
    """The script that starts this version's server. Makes the version's folder first, if it is not there.

    Raises NotInstalled.
    """
    if version not in SUITES:
        raise NotInstalled(f"RabbitMQ {version}: known are {', '.join(SUITES)}, or give the path of a rabbitmq-server.")
    scripts = scripts_of(f"rabbitmq-{version}", suite=SUITES[version], package="rabbitmq-server", programs=_PROGRAMS)
    return scripts / "rabbitmq-server"


if __name__ == "__main__":
    print(server_of(sys.argv[1]))
