"""Everything that may happen to the line to RabbitMQ, or end the broker, under workers of either kind.

What is asked of them after each fault is in test_broker_faults.py.
"""

from collections.abc import Callable

import pytest

from tests.chaos.outpost import Outpost
from tests.helpers import has_traceback
from tests.scale import chosen


def killed(outpost: Outpost) -> None:
    outpost.node.kill9()
    outpost.node.start()


def hung_up(outpost: Outpost) -> None:
    outpost.proxy.hang_up()


def reset(outpost: Outpost) -> None:
    outpost.proxy.hang_up(reset=True)


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


def mute(outpost: Outpost) -> None:
    outpost.proxy.stall("up")
    outpost.both_say("connection lost")


def swallowed_for_a_while(outpost: Outpost) -> None:
    outpost.proxy.stall(new_too=True)
    outpost.both_say("connection lost")
    outpost.proxy.resume()


#: Quick ones after slow ones: sessions that are lost soon after they were opened are opened again with growing pauses.
FAULTS: list[Callable[[Outpost], None]] = [
    hung_up,
    deaf,
    *chosen([], reset, mute),
    away_for_a_while,
    swallowed_for_a_while,
    closed_by_the_operator,
    killed,
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_all_goes_on_by_itself_after(outpost: Outpost, fault: Callable[[Outpost], None]) -> None:
    fault(outpost)

    outpost.all_is_well()
    assert not has_traceback("".join(outpost.logs.values()))
