"""A user lacks a permission, or loses it for a while under a session: all works again once it is back."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from palermo.brokers.rabbitmq.broker import RabbitmqBroker, open_rabbitmq
from palermo.brokers.rabbitmq.cluster.worker_control import census
from palermo.contract.broker import SessionParameters
from palermo.contract.scheduled import ScheduledFilter
from palermo.core.address import parse_url
from palermo.core.election import Duty
from palermo.core.topology import internal
from tests.contract.tools import PATIENT, consume, until
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


def test_a_virtual_host_without_permissions_ends_worker_and_command_with_what_to_do(
    module_node: Node, tmp_path: Path, exchange: str
) -> None:
    module_node.ctl("add_vhost", "noperm")

    with Rig(tmp_path, url_of(module_node, vhost="noperm"), exchange, module="shop") as rig:
        worker, command = rig.worker(), rig.run("enqueue", "some.job")

        assert worker.wait() == command.returncode == 3
    for told in (worker.log, command.stderr):
        assert "refused virtual host 'noperm' to user 'guest'" in told
        assert "`rabbitmqctl set_permissions -p noperm guest" in told
