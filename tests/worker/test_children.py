"""The processes of a pool, as the template reports them."""

import os
import signal
import socket

from palermo.worker.ipc.batch_marks import BatchMarks
from palermo.worker.limits import Limits
from palermo.worker.pools.child import Child, Place
from palermo.worker.pools.children import Children
from palermo.worker.pools.forked_pool import ForkedPool
from palermo.worker.pools.pool import StackFile
from palermo.worker.process import nameless_file


async def test_the_late_end_of_a_process_does_not_end_the_next_one() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        children, limits = Children(ours, os.getpid()), Limits()
        stacks = StackFile(nameless_file())
        pool = ForkedPool(children, slots=1, shared=False, limits=limits, stacks=stacks, marks=BatchMarks(1))
        slot = Child(1, Place(children, limits, pool, lambda work: work.close(), slot=1), pool)
        children._numbered[1] = slot
        slot.renew()
        children.forked(1, 1001)
        # Its socket pair closed, and it is forked again.
        slot.renew()
        children.exited(1001, -signal.SIGKILL)
        assert slot.end_reason is not None
        assert not slot.end_reason.done()

        children.forked(1, 1002)
        children.exited(1002, -signal.SIGKILL)
        assert "SIGKILL" in str(slot.end_reason.result())
        stacks.close()
