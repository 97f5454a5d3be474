"""A virtual host that has as many queues as it may: what needs one queue more is refused, and the error says why."""

import time
from collections.abc import Iterator

import pytest

from palermo.brokers.rabbitmq.broker import open_rabbitmq
from palermo.contract.broker import SessionParameters
from palermo.core.address import parse_url
from palermo.core.message import Message
from palermo.errors import BrokerRefused
from tests.contract.tools import PATIENT, ids, message
from tests.rabbitmq_node import Node, url_of


@pytest.fixture
def session(module_node: Node, exchange: str) -> Iterator[SessionParameters]:
    yield SessionParameters(address=parse_url(url_of(module_node)), exchange=exchange, timeout=PATIENT)
    module_node.ctl("clear_vhost_limits")


@pytest.mark.parametrize(
    "needs_a_queue",
    [message("new", "new"), message("later", "jobs", run_at=time.time() + 3_600), message("ours", "jobs", tenant="a")],
    ids=lambda message: message.id,
)
async def test_a_job_that_needs_one_queue_more_is_refused_at_once_and_others_are_stored(
    session: SessionParameters, module_node: Node, needs_a_queue: Message
) -> None:
    broker = await open_rabbitmq(session)
    await broker.publish(message("first", "jobs"))
    # Now the lists of time slots and tenants are there, and only the queue of the job itself is missing.
    for other in (message("soon", "jobs", run_at=time.time() + 7_200), message("theirs", "jobs", tenant="b")):
        await broker.publish(other)
    module_node.ctl("set_vhost_limits", '{"max-queues": 0}')

    with pytest.raises(BrokerRefused, match="queue limit in vhost '/'"):
        await broker.publish(needs_a_queue)

    await broker.publish(message("second", "jobs"))
    module_node.ctl("set_vhost_limits", '{"max-queues": -1}')
    assert {"first", "second"} <= set(await ids(broker, "jobs"))
    await broker.close()
