"""The child of a thread pool: its main thread reads what the parent sends, and jobs run in others."""

import socket
import struct
from typing import NoReturn

from palermo.worker.pipe import Frames, load
from palermo.worker.shared_slot import Seats
from palermo.worker.slot import leave

#: After so long without a frame, as the kernel takes it (seconds, microseconds), the title is looked at, while it is
#: not known to be true; and for ever.
_A_WHILE, _FOR_EVER = struct.pack("@ll", 0, 500_000), struct.pack("@ll", 0, 0)

_READ = 65_536


def serve(end: socket.socket, seats: Seats) -> NoReturn:
    """Have seats run what comes through the pair until the parent closes it."""
    frames = Frames()
    resting = True
    seats.ready()
    while True:
        try:
            data = end.recv(_READ)
        except BlockingIOError:
            seats.title.show(seats.busy)
            if seats.title.true_at_rest:
                resting = True
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _FOR_EVER)
            continue
        except OSError:  # a job closed our end
            leave(1)
        if not data:
            leave(0)
        if resting:
            # In the kernel, since to ask before each read would cost a call to the system for each.
            resting = False
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _A_WHILE)
        for payload in frames.feed(data):
            seats.obey(load(payload), seats.run_in_thread)
