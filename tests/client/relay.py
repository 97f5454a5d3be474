"""A TCP relay that can be told to go silent, to hang up and to refuse: the ways a network fails."""

import contextlib
import select
import socket
import threading
from typing import Self


class Relay:
    """Listens on a port of its own and passes everything on to another, until told otherwise."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        #: How many connections were made.
        self.accepted = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._silent: list[socket.socket] = []
        self._lock = threading.Lock()
        self._deaf = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.hang_up()
        self._listener.close()

    def go_silent(self, *, new_too: bool = False) -> None:
        """Swallow what comes on the connections there are, as a firewall that forgot them; with `new_too` on all."""
        with self._lock:
            self._silent += [end for pair in self._pairs for end in pair]
            self._pairs.clear()
            self._deaf = new_too

    def hang_up(self) -> None:
        """Close all connections."""
        with self._lock:
            ends = [end for pair in self._pairs for end in pair] + self._silent
            self._pairs.clear()
            self._silent.clear()
        for end in ends:
            with contextlib.suppress(OSError):
                end.close()

    def refuse(self) -> None:
        """Stop listening: who connects is refused."""
        self._listener.close()

    def listen(self) -> None:
        """Listen again, passing on."""
        self._deaf = False
        if self._listener.fileno() < 0:
            self._listener = socket.create_server(("127.0.0.1", self.port))

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                other = {a: b for pair in self._pairs for a, b in (pair, pair[::-1])}
            listener = self._listener
            try:
                ready, _, _ = select.select([*other, *([listener] if listener.fileno() >= 0 else [])], [], [], 0.02)
            except (OSError, ValueError):  # closed meanwhile
                continue
            for end in ready:
                if end is listener:
                    self._accept()
                elif any(end in pair for pair in self._pairs):  # not told to be silent since
                    self._pass_on(end, other[end])

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        self.accepted += 1
        with self._lock:
            if self._deaf:
                self._silent.append(client)
            else:
                self._pairs.append((client, socket.create_connection(self._target)))

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        try:
            data = source.recv(65_536)
            if data:
                target.sendall(data)
                return
        except OSError:
            pass
        with self._lock:
            self._pairs = [pair for pair in self._pairs if source not in pair]
        for end in (source, target):
            end.close()
