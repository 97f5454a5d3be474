"""The child process of a thread pool: its main thread reads the parent's frames, and jobs run in other threads."""

import socket
import struct
from collections.abc import Callable
from typing import NoReturn

from palermo.worker.child.process import exit_now
from palermo.worker.child.shared_slots import SharedSlots
from palermo.worker.ipc.frames import FrameBuffer, load

#: The time without a frame after which the title is checked, in the kernel's format (seconds, microseconds): while the
#: title may be wrong, and once it is right.
_A_WHILE, _FOR_EVER = struct.pack("@ll", 0, 500_000), struct.pack("@ll", 0, 0)

_READ = 65_536


def serve(end: socket.socket, slots: SharedSlots, leave: Callable[[], NoReturn]) -> NoReturn:
    """Run the jobs that the parent sends, until it closes the socket pair; then `leave`."""
    frames = FrameBuffer()
    resting = True
    slots.ready()
    while True:
        try:
            data = end.recv(_READ)
        except BlockingIOError:
            slots.title.show(slots.busy)
            if slots.title.true_at_rest:
                resting = True
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _FOR_EVER)
            continue
        except OSError:  # a job closed our end
            exit_now(1)
        if not data:
            leave()
        if resting:
            # In the kernel: a poll before each read would cost a system call each time.
            resting = False
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _A_WHILE)
        for payload in frames.feed(data):
            slots.obey(load(payload), slots.run_in_thread)
