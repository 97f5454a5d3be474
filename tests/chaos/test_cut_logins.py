"""A line that is cut while Palermo logs in to RabbitMQ: that is no wrong password, and is tried again."""

import asyncio

import pytest
from msgspec.structs import replace

from palermo.contract.broker import SessionParameters, open_broker
from palermo.errors import BrokerUnavailable
from tests.tcp_proxy import TcpProxy


def complaint(session: SessionParameters) -> str:
    """Why the broker is unavailable; "" if it is not. Raises every other error."""

    async def log_in() -> None:
        await (await open_broker(session)).close()

    try:
        asyncio.run(log_in())
    except BrokerUnavailable as error:
        return str(error)
    return ""


@pytest.mark.parametrize("reset", [False, True], ids=["farewell", "reset"])
def test_a_line_cut_in_the_login_is_no_wrong_password(session: SessionParameters, proxy: TcpProxy, reset: bool) -> None:
    session = replace(session, address=replace(session.address, hosts=(("127.0.0.1", proxy.port),)))
    assert complaint(session) == ""
    # How many bytes RabbitMQ says until a session is open; a few of them follow the login.
    login_bytes, proxy.accepted = proxy.said, 0
    # Within the head of a frame, within Start, and around Tune and OpenOk, with which the login ends.
    proxy.limits = [0, 1, 6, 7, 8, 60, *range(login_bytes // 2, login_bytes, 23)]
    proxy.resets = reset

    for cut in proxy.limits:
        said = complaint(session)
        assert "password" not in said, cut
        # The last bytes answer the farewell, when the session was open already.
        assert said or cut > login_bytes // 2, cut

    assert proxy.accepted >= len(proxy.limits)
