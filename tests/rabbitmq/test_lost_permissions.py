"""A user lacks a permission or reaches a limit, perhaps for a while: what is possible works, and so does all again."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from palermo.brokers.rabbitmq.broker import RabbitmqBroker, open_rabbitmq
from palermo.brokers.rabbitmq.cluster.worker_control import census
from palermo.contract.broker import SessionParameters
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.address import parse_url
from palermo.core.election import Duty
from palermo.core.message import Message
from palermo.core.topology import internal
from palermo.errors import BrokerRefused
from tests.contract.tools import PATIENT, consume, ids, message, until
from tests.contract.unique_jobs import ask, keyed
from tests.harness.rig import Rig
from tests.helpers import HANGS, eventually
from tests.rabbitmq.channel_errors import channel_errors
from tests.rabbitmq_node import Node, add_user, set_permissions, url_of

USER, ALL, NOTHING = "limited", ".*", "^$"


@dataclass
class Two:
    """A session of a user whose permissions change, and one of a user who may do all."""

    node: Node
    session: SessionParameters
    limited: RabbitmqBroker
    free: RabbitmqBroker

    def permit(self, *, configure: str = ALL, write: str = ALL) -> None:
        set_permissions(self.node, USER, configure, write, ALL)


@pytest.fixture(scope="module")
def user(module_node: Node) -> str:
    add_user(module_node, USER, "secret")
    return USER


@pytest.fixture
def two(runner: asyncio.Runner, module_node: Node, user: str, exchange: str) -> Iterator[Two]:
    def session(url: str) -> SessionParameters:
        return SessionParameters(address=parse_url(url), exchange=exchange, timeout=PATIENT)

    set_permissions(module_node, user, ALL, ALL, ALL)
    limited = session(url_of(module_node, user=user, password="secret"))
    brokers = [runner.run(open_rabbitmq(one)) for one in (limited, session(url_of(module_node)))]
    yield Two(module_node, limited, *brokers)
    for broker in brokers:
        runner.run(broker.close())


async def test_a_leader_whose_reply_was_refused_answers_again(two: Two) -> None:
    leading = asyncio.ensure_future(two.limited.run_scheduler())
    async with asyncio.timeout(HANGS):
        while len(two.limited.duties) < len(Duty):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
    two.permit(write=NOTHING)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await two.free.scheduled(ScheduledFilter())

    two.permit()

    async with asyncio.timeout(HANGS):
        assert (await two.free.scheduled(ScheduledFilter())).total == 0
    leading.cancel()
    await asyncio.wait({leading})


async def test_a_worker_that_could_not_be_counted_is_counted_again(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = await consume(two.limited, "mail")
    errors = channel_errors(monkeypatch)
    two.permit(configure=NOTHING)
    await two.free._connection.delete(internal(two.session.exchange, "presence"))
    async with asyncio.timeout(HANGS):
        while not any("403" in str(error) for error in errors):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)

    two.permit()

    await until(lambda: census(two.free._connection, two.session.exchange), 1)
    await consumer.close()


def test_a_worker_announces_its_unique_jobs_once_it_may(
    module_node: Node, user: str, exchange: str, tmp_path: Path
) -> None:
    (tmp_path / "syncs.py").write_text("import palermo\n@palermo.job(unique='until_done')\ndef sync(): ...\n")
    with Rig(tmp_path, url=url_of(module_node), exchange=exchange, module="syncs") as rig:
        set_permissions(module_node, user, ALL, ALL, r"^(?!.*~unique-jobs)")
        worker = rig.worker(PALERMO_URL=url_of(module_node, user=user, password="secret"))
        eventually(lambda: "unique jobs are not announced" in worker.log)
        rig.ready(worker)

        set_permissions(module_node, user, ALL, ALL, ALL)

        eventually(lambda: "syncs.sync" in rig.client.run(lambda broker: broker.keys.announced()))


def test_a_virtual_host_without_permissions_ends_worker_and_command(
    module_node: Node, tmp_path: Path, exchange: str
) -> None:
    module_node.ctl("add_vhost", "noperm")

    with Rig(tmp_path, url_of(module_node, vhost="noperm"), exchange, module="shop") as rig:
        worker, command = rig.worker(), rig.run("enqueue", "some.job")

        assert worker.wait() == command.returncode == 3
    for told in (worker.log, command.stderr):
        assert "refused virtual host 'noperm' to user 'guest'" in told
        assert "`rabbitmqctl set_permissions -p noperm guest" in told


async def test_a_user_is_told_which_permissions_a_unique_job_needs(two: Two) -> None:
    set_permissions(two.node, USER, ALL, ALL, NOTHING)

    with pytest.raises(BrokerRefused, match=rf"refused for user '{USER}'.* read permission"):
        await ask(two.limited, keyed("1"))


@pytest.fixture
def limit(module_node: Node) -> Iterator[Callable[[int], str]]:
    """Limits the number of queues of the virtual host; -1 is no limit."""
    yield lambda most: module_node.ctl("set_vhost_limits", f'{{"max-queues": {most}}}')
    module_node.ctl("clear_vhost_limits")


@pytest.mark.parametrize(
    "needs_a_queue",
    [message("new", "new"), message("later", "jobs", run_at=time.time() + 3_600), message("ours", "jobs", tenant="a")],
    ids=lambda message: message.id,
)
async def test_a_job_that_needs_one_queue_more_than_allowed_is_refused_at_once(
    two: Two, limit: Callable[[int], str], needs_a_queue: Message
) -> None:
    await two.free.publish(message("first", "jobs"))
    # Now the lists of time slots and tenants are there, and only the queue of the job itself is missing.
    for other in (message("soon", "jobs", run_at=time.time() + 7_200), message("theirs", "jobs", tenant="b")):
        await two.free.publish(other)
    limit(0)

    with pytest.raises(BrokerRefused, match="queue limit in vhost '/'"):
        await two.free.publish(needs_a_queue)

    await two.free.publish(message("second", "jobs"))
    limit(-1)
    assert {"first", "second"} <= set(await ids(two.free, "jobs"))
