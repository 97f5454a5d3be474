"""A broker that is restarted under its users: RabbitMQ or Redis."""

from typing import Protocol


class Node(Protocol):
    """A server that a test may harm. Its data outlives its process."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill9(self) -> None: ...


class RestartingBroker:
    """A server and its address."""

    def __init__(self, node: Node, *, url: str, listens_at: str) -> None:
        self.node = node
        #: For Palermo.
        self.url = url
        #: What an error names if the server does not answer.
        self.listens_at = listens_at

    def restart(self, how: str) -> None:
        """End it `by kill -9` or `in good order`, and start it again."""
        if how == "by kill -9":
            self.node.kill9()
        else:
            self.node.stop()
        self.node.start()
