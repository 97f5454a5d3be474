"""The processes of a pool, as the template reports them."""

import os
import signal
import socket

from palermo.worker.pools.children import Children
from palermo.worker.pools.process_pool import ProcessSlot


async def test_the_late_end_of_a_process_does_not_end_the_next_one() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        children, slot = Children(ours, os.getpid()), ProcessSlot(1)
        children._numbered[1] = slot
        slot.renew()
        children.forked(1, 1001)
        # Its socket pair closed, and it is forked anew.
        slot.renew()
        children.exited(1001, -signal.SIGKILL)
        assert slot.end_reason is not None
        assert not slot.end_reason.done()

        children.forked(1, 1002)
        children.exited(1002, -signal.SIGKILL)
        assert "SIGKILL" in str(slot.end_reason.result())
