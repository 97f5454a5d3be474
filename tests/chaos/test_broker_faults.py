"""Everything that may happen to RabbitMQ or to the line to it, under workers that are pushed jobs and workers that ask.

After each fault, within RECOVERY seconds, the program enqueues again, every worker runs what is enqueued then, in the
process that it was before, and is in the list of workers.
"""

from collections.abc import Callable

import pytest

from palermo.core.topology import internal
from tests.chaos.outpost import PASSWORD, USER, VHOST, Outpost
from tests.helpers import eventually
from tests.rabbitmq_node import change_password, delete_vhost


def killed(outpost: Outpost) -> None:
    outpost.node.kill9()
    outpost.node.start()


def hung_up(outpost: Outpost) -> None:
    outpost.proxy.hang_up()


def away_for_a_while(outpost: Outpost) -> None:
    outpost.proxy.refuse()
    outpost.proxy.hang_up()
    outpost.both_say("connection refused")
    outpost.proxy.listen()


def closed_by_the_operator(outpost: Outpost) -> None:
    outpost.close_connections()
    outpost.both_say("connection lost")


def deaf(outpost: Outpost) -> None:
    outpost.proxy.stall("down")
    outpost.both_say("connection lost")


def swallowed_for_a_while(outpost: Outpost) -> None:
    outpost.proxy.stall(new_too=True)
    outpost.both_say("connection lost")
    outpost.proxy.resume()


def queues_deleted(outpost: Outpost) -> None:
    outpost.delete_queues()


def queues_made_quorum(outpost: Outpost) -> None:
    outpost.delete_queues(arguments={"x-queue-type": "quorum"})


def exchange_and_queues_deleted(outpost: Outpost) -> None:
    with outpost.channel() as channel:
        channel.exchange_delete("palermo")
    outpost.delete_queues()


def own_things_deleted(outpost: Outpost) -> None:
    """By someone who tidies up, and does not know what they are for."""
    with outpost.channel() as channel:
        channel.exchange_delete(internal("palermo", "control"))
        channel.queue_delete(internal("palermo", "presence"))
        channel.queue_delete(internal("palermo", "facts"))


def permissions_taken_away(outpost: Outpost) -> None:
    outpost.permit("^$")
    outpost.close_connections()
    outpost.both_say("does not let user 'outpost' do this")
    eventually(lambda: outpost.is_refused("does not let user"))
    outpost.permit(".*")


def password_changed(outpost: Outpost) -> None:
    change_password(outpost.node, USER, "another")
    outpost.close_connections()
    outpost.both_say("refused user 'outpost': wrong user name or password")
    eventually(lambda: outpost.is_refused("wrong user name or password"))
    change_password(outpost.node, USER, PASSWORD)


def vhost_deleted(outpost: Outpost) -> None:
    delete_vhost(outpost.node, VHOST)
    outpost.both_say("refused virtual host 'outpost'")
    outpost.make_vhost()


#: Quick ones after slow ones: sessions that are lost soon after they were opened are opened again with growing pauses.
FAULTS: list[Callable[[Outpost], None]] = [
    *(hung_up, deaf, away_for_a_while, swallowed_for_a_while, closed_by_the_operator, killed, queues_deleted),
    *(queues_made_quorum, permissions_taken_away, exchange_and_queues_deleted, own_things_deleted),
    *(password_changed, vhost_deleted),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_all_goes_on_by_itself_after(outpost: Outpost, fault: Callable[[Outpost], None]) -> None:
    fault(outpost)

    outpost.all_is_well()
    for log in outpost.logs.values():
        before, traceback, after = log.partition("Traceback")
        assert not traceback, before[-1_000:] + traceback + after[:5_000]
