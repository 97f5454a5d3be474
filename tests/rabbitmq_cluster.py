"""A RabbitMQ cluster of private nodes on this machine, any of which a test may kill."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

from tests.helpers import eventually
from tests.rabbitmq_node import LocalNode, answers, binary, url_of


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
        """The node on which a queue's leader is, or the only copy of a classic queue."""
        up = next(node for node in self.nodes if node.runs)
        name = up.evaluate(
            f"{{ok, Queue}} = rabbit_amqqueue:lookup(rabbit_misc:r({binary('/')}, queue, {binary(queue)})),"
            " case amqqueue:get_pid(Queue) of {_, Node} -> Node; Pid -> node(Pid) end"
        )
        return next(node for node in self.nodes if node.name == name.strip("'"))

    @contextlib.contextmanager
    def cut_off(self, node: LocalNode) -> Iterator[None]:
        """Have this node and the others not reach each other meanwhile, and see each other again after it.

        Clients reach all of them. The node has another cookie for the others than they have for it, so each refuses
        the connections of the other.
        """
        others = [other for other in self.nodes if other is not node]
        names = "[" + ", ".join(f"'{other.name}'" for other in others) + "]"

        def have(cookie: str) -> None:
            node.evaluate(f"[erlang:set_cookie(Name, '{cookie}') || Name <- {names}]")

        def is_cut() -> bool:
            return node.evaluate("nodes()") == "[]" and not any(node.name in one.evaluate("nodes()") for one in others)

        have("another")
        # At once: a node that still reached one of the others would be told what that one sees.
        node.evaluate(f"[erlang:disconnect_node(Name) || Name <- {names}]")
        eventually(is_cut)
        try:
            yield
            assert is_cut()
        finally:
            have(node.cookie)
        for one in self.nodes:
            eventually(lambda one=one: one.evaluate("length(nodes())") == str(len(others)))
        eventually(lambda: answers(node.host, node.port, url_of(node)))


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
