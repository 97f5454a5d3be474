"""The child of a thread pool: its main thread reads what the parent sends, and each slot is a thread."""

import select
import socket
from typing import NoReturn

from palermo.worker.pipe import Frames, load
from palermo.worker.shared_slot import Seats
from palermo.worker.slot import leave

#: Milliseconds between two looks at whether the title is still true, while it is not known to be.
_TITLE_EVERY_MS = 500

_READ = 65_536


def serve(end: socket.socket, seats: Seats) -> NoReturn:
    """Have seats run what comes through the pair until the parent closes it."""
    poll = select.poll()
    poll.register(end, select.POLLIN)
    frames = Frames()
    seats.ready()
    while True:
        while not seats.title.true_at_rest and not poll.poll(_TITLE_EVERY_MS):
            seats.title.show(seats.busy)
        try:
            data = end.recv(_READ)
        except OSError:  # a job closed our end
            leave(1)
        if not data:
            leave(0)
        for payload in frames.feed(data):
            seats.obey(load(payload), seats.run_in_thread)
