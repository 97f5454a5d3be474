"""Several hosts in the URL: a host that does not answer costs a share of the time, and not all of it."""

import socket
import time
from urllib.parse import urlsplit

from palermo.client.client import Client
from palermo.settings.settings import Settings
from tests.helpers import Stopwatch
from tests.rabbitmq_node import free_port


def test_a_host_that_swallows_everything_and_one_that_is_off_do_not_eat_the_whole_timeout(
    rabbitmq_url: str, exchange: str
) -> None:
    split = urlsplit(rabbitmq_url)
    credentials, _, sound = split.netloc.rpartition("@")
    with socket.create_server(("127.0.0.1", 0)) as black_hole:
        hosts = f"127.0.0.1:{black_hole.getsockname()[1]},127.0.0.1:{free_port()},{sound}"
        url = split._replace(netloc=f"{credentials}@{hosts}").geturl()
        client = Client(Settings(url=url, exchange=exchange, publish_timeout=18))
        began, watch = time.monotonic(), Stopwatch()

        client.enqueue("shop.mail.send", ())

        assert time.monotonic() - began > 1
        # A third of the time, and what a machine may stand still.
        assert watch.seconds() < 14
        client.close()
