"""A RabbitMQ cluster of private nodes on this machine, any of which a test may kill."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from tests.rabbitmq_node import LocalNode


class Cluster:
    """Nodes that know each other."""

    def __init__(self, nodes: list[LocalNode]) -> None:
        self.nodes = nodes

    @property
    def url(self) -> str:
        """The AMQP URL that names all nodes, in their order."""
        return self.url_from(0)

    def url_from(self, first: int) -> str:
        """The same, beginning with this node."""
        hosts = ",".join(f"{node.host}:{node.port}" for node in [*self.nodes[first:], *self.nodes[:first]])
        return f"amqp://guest:guest@{hosts}/{quote('/', safe='')}"

    def leader(self, queue: str) -> LocalNode:
        """The node on which a queue's leader is, or the only copy of a classic queue. Takes a second or two."""
        names = {node.name: node for node in self.nodes}
        up = next(node for node in self.nodes if node.runs)
        for line in up.ctl("list_queues", "name", "pid").splitlines():
            name, _, pid = line.partition("\t")
            if name == queue:
                return next(node for name, node in names.items() if name in pid)
        raise AssertionError(f"no queue {queue}")


@contextlib.contextmanager
def cluster(server: Path, size: int = 3, *, config: str = "") -> Iterator[Cluster]:
    """So many nodes that formed a cluster, all running. About as long as the start of two nodes."""
    nodes: list[LocalNode] = []
    for _ in range(size):
        nodes.append(LocalNode(server, friend=nodes[0] if nodes else None))
    nodes[0].configure(config)
    peers = "".join(f"cluster_formation.classic_config.nodes.{n} = {node.name}\n" for n, node in enumerate(nodes, 1))
    for node in nodes[1:]:
        node.configure(f"cluster_formation.peer_discovery_backend = classic_config\n{peers}{config}")
    with contextlib.ExitStack() as undo, ThreadPoolExecutor(size) as threads:
        # The first one forms the cluster, and the others find it when they start.
        undo.enter_context(nodes[0])
        for started in [threads.submit(node.__enter__) for node in nodes[1:]]:
            node = started.result()
            undo.callback(node.__exit__)
        yield Cluster(nodes)
