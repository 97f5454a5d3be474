"""amqps:// with a private authority and client certificates, and each way in which it goes wrong."""

import asyncio
import gc
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from palermo.brokers.rabbitmq.amqp.parameters import connection_parameters
from palermo.client.client import Client
from palermo.contract.broker import SessionParameters, open_broker
from palermo.core.address import parse_url
from palermo.errors import BrokerRefused, BrokerUnavailable, UrlInvalid
from palermo.event_loop import new_event_loop
from palermo.settings.settings import Settings
from palermo.worker.parent.shutdown import UNREACHABLE
from tests import rabbitmq_found
from tests.certificates import Authority, Certificate, openssl
from tests.harness.rig import Rig
from tests.helpers import HANGS, eventually, has_traceback
from tests.rabbitmq_node import LocalNode, Node, add_user, free_port, set_permissions, with_durable_streams
from tests.tcp_proxy import TcpProxy

pytestmark = pytest.mark.slow

PASSWORD = "never-to-be-seen"

#: The host that the server's certificates name, and one that leads to the same server.
RIGHT, WRONG = "localhost", "127.0.0.1"

#: What the strict listener is told: the way of RabbitMQ's own guide to TLS.
CONFIG = """
listeners.ssl.1 = {{listen}}:{port}
ssl_options.cacertfile = {{folder}}/ours.pem
ssl_options.certfile = {{folder}}/server.pem
ssl_options.keyfile = {{folder}}/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
"""


class Certificates:
    """What the tests' server and its clients have, and what they should not have."""

    def __init__(self, folder: Path) -> None:
        self.ours = Authority(folder, "ours")
        self.other = Authority(folder, "other")
        self.server = self.ours.sign("server", host=RIGHT)
        self.expired_server = self.ours.sign("expired-server", host=RIGHT, days=0)
        self.client = self.ours.sign("client")
        self.expired = self.ours.sign("expired", days=0)
        self.stranger = self.other.sign("stranger")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


#: The ports of a node that listens with TLS in several ways: "open" wants no client certificate, "strict" wants one,
#: "older" wants one and speaks TLS 1.2 at most, where the handshake ends otherwise than with 1.3, and the own
#: certificate of "expired" has expired. "plain" is the one without TLS.
Ports = dict[str, int]


@pytest.fixture(scope="module")
def secured(made: Certificates) -> Iterator[Ports]:
    ports = {name: free_port() for name in ("strict", "open", "older", "expired")}
    wanted = (made.ours.file, *(file for one in (made.server, made.expired_server) for file in (one.file, one.key)))
    files = {file.name: file.read_bytes() for file in wanted}
    config = CONFIG.format(port=ports["strict"])
    with rabbitmq_found.find()(config=config, files=files, ports=tuple(ports.values())) as node:
        with_durable_streams(node)
        listen(node, ports["open"], "server", "{verify, verify_none}")
        older = "{verify, verify_peer}, {fail_if_no_peer_cert, true}, {versions, ['tlsv1.2']}"
        listen(node, ports["older"], "server", older)
        listen(node, ports["expired"], "expired-server", "{verify, verify_none}")
        add_user(node, "shop", PASSWORD)
        set_permissions(node, "shop", ".*", ".*", ".*")
        yield {**ports, "plain": node.port}


def listen(node: Node, port: int, certificate: str, options: str) -> None:
    """Have a running node listen in one more way than its configuration can say."""
    host = "127.0.0.1" if isinstance(node, LocalNode) else "0.0.0.0"
    done = node.evaluate(f"""
        begin
            {{ok, Configured}} = application:get_env(rabbit, ssl_options),
            Authority = proplists:get_value(cacertfile, Configured),
            File = fun(Name) -> filename:join(filename:dirname(Authority), Name) end,
            rabbit_networking:start_ssl_listener({{"{host}", {port}}}, [
                {{cacertfile, Authority}}, {{certfile, File("{certificate}.pem")}},
                {{keyfile, File("{certificate}.key")}}, {options}
            ], 2)
        end""")
    assert done == "ok", done


def url(port: int, *, host: str = RIGHT, scheme: str = "amqps", **files: object) -> str:
    query = f"?{urlencode(files)}" if files else ""
    return f"{scheme}://shop:{PASSWORD}@{host}:{port}/{query}"


def named(certificate: Certificate) -> dict[str, Path]:
    return {"certfile": certificate.file, "keyfile": certificate.key}


# -- it works --------------------------------------------------------------------------------------


def test_jobs_travel_with_a_certificate(secured: Ports, made: Certificates, tmp_path: Path, exchange: str) -> None:
    address = url(secured["strict"], cafile=made.ours.file, **named(made.client))
    with Rig(tmp_path, address, exchange, module="shop") as rig:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda number: rig.enqueue("note", f"{number}"), range(20)))
        rig.client.enqueue("shop.note", ("later",), delay=0.1)
        rig.enqueue("fail", "wanted")

        worker = rig.worker()
        rig.await_lines(21)
        eventually(lambda: len(rig.failed()) == 1)
        doctor = rig.palermo("doctor")
        listed = rig.palermo("queues")
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.log

    assert sorted(rig.lines()) == sorted([*map(str, range(20)), "later"])
    assert f"to {RIGHT}:{secured['strict']} as user shop" in doctor
    for seen in (doctor, listed, worker.log):
        assert PASSWORD not in seen
        assert not has_traceback(seen)


@pytest.mark.parametrize("way", ["TLS 1.2", "authority in the environment", "words of pika"])
def test_another_version_and_other_ways_to_name_the_files_will_do(
    secured: Ports, made: Certificates, exchange: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"cafile": str(made.ours.file), **{name: str(file) for name, file in named(made.client).items()}}
    match way:
        case "TLS 1.2":
            address = url(secured["older"], **options)
        case "words of pika":
            address = url(secured["strict"], ssl_options=options)
        case _:
            monkeypatch.setenv("SSL_CERT_FILE", str(made.ours.file))
            address = url(secured["open"])

    assert RIGHT in asyncio.run(described(address, exchange))


def test_a_lost_connection_with_tls_is_opened_again(secured: Ports, made: Certificates, exchange: str) -> None:
    with TcpProxy(WRONG, secured["strict"]) as proxy:
        address = url(proxy.port, cafile=made.ours.file, **named(made.client))
        client = Client(Settings(url=address, exchange=exchange, publish_timeout=HANGS))
        client.enqueue("shop.note", ("before",))
        proxy.hang_up(reset=True)
        client.enqueue("shop.note", ("after",))
        client.close()

    assert proxy.accepted > 1


def test_a_renewed_certificate_is_read_again(secured: Ports, made: Certificates, tmp_path: Path, exchange: str) -> None:
    file = tmp_path / "authority.pem"
    file.write_bytes(made.other.file.read_bytes())
    client = Client(Settings(url=url(secured["open"], cafile=file), exchange=exchange, publish_timeout=HANGS))
    with pytest.raises(BrokerRefused, match="authority"):
        client.enqueue("shop.note", ("before",))

    file.write_bytes(made.ours.file.read_bytes())

    client.enqueue("shop.note", ("after",))
    client.close()


def test_a_host_whose_certificate_is_wrong_is_passed_over(secured: Ports, made: Certificates, exchange: str) -> None:
    both = url(secured["open"], host=f"{RIGHT}:{secured['expired']},{RIGHT}", cafile=made.ours.file)

    assert f"{RIGHT}:{secured['open']}" in asyncio.run(described(both, exchange))

    none = url(secured["open"], host=f"{RIGHT}:{secured['expired']},{WRONG}", cafile=made.ours.file)
    with pytest.raises(BrokerRefused, match=r"has expired.* is for another host"):
        asyncio.run(described(none, exchange))


# -- what is refused, and in which words -----------------------------------------------------------


@dataclass(frozen=True)
class Wrong:
    """A URL that cannot work, and what is said of it."""

    listener: str
    said: str
    files: Callable[[Certificates], dict[str, Path]] = lambda made: {"cafile": made.ours.file}
    host: str = RIGHT
    scheme: str = "amqps"


def with_client(name: str) -> Callable[[Certificates], dict[str, Path]]:
    return lambda made: {"cafile": made.ours.file, **named(getattr(made, name))}


WRONGS = {
    "another authority": Wrong("open", "authority that is not trusted", lambda made: {"cafile": made.other.file}),
    "no authority named": Wrong("open", "amqps://…?cafile=", lambda made: {}),
    "another host": Wrong("open", "is for another host", host=WRONG),
    "expired": Wrong("expired", "or that of its authority, has expired. Renew it on the RabbitMQ server"),
    "no client certificate": Wrong("strict", "requires a client certificate. Name one"),
    "a client of another authority": Wrong("strict", "does not trust the authority of the", with_client("stranger")),
    "an expired client": Wrong("strict", "the client certificate has expired", with_client("expired")),
    "no client certificate, TLS 1.2": Wrong("older", "may require a client certificate"),
    "another authority's, TLS 1.2": Wrong("older", "does not trust the authority of the", with_client("stranger")),
    "an expired client, TLS 1.2": Wrong("older", "the client certificate has expired", with_client("expired")),
    "a port without TLS": Wrong("plain", "does not use TLS"),
    "no TLS to a port with it": Wrong("open", "requires TLS. Write amqps://", lambda made: {}, scheme="amqp"),
    "no TLS to a strict port": Wrong("strict", "requires TLS. Write amqps://", lambda made: {}, scheme="amqp"),
}


@pytest.mark.parametrize("wrong", WRONGS.values(), ids=WRONGS.keys())
def test_a_forbidden_connection_is_refused(secured: Ports, made: Certificates, exchange: str, wrong: Wrong) -> None:
    with TcpProxy(WRONG, secured[wrong.listener]) as proxy:
        address = url(proxy.port, host=wrong.host, scheme=wrong.scheme, **wrong.files(made))
        client = Client(Settings(url=address, exchange=exchange, publish_timeout=HANGS))
        with pytest.raises(BrokerRefused) as raised:
            client.enqueue("shop.note", ("never",))
        client.close()
        assert proxy.accepted == 1

    assert wrong.said in str(raised.value)
    assert f"{wrong.host}:{proxy.port}" in str(raised.value)
    assert PASSWORD not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_connection_is_told_in_one_line(secured: Ports, made: Certificates, tmp_path: Path, exchange: str) -> None:
    with Rig(tmp_path, url(secured["open"], cafile=made.other.file), exchange, module="shop") as rig:
        done, worker = rig.run("queues"), rig.worker()

        assert worker.wait() == done.returncode == UNREACHABLE
    assert done.stderr.startswith("palermo: BrokerRefused: ")
    assert done.stderr.count("\n") == 1
    for text in (done.stderr, worker.log):
        assert "authority that is not trusted" in text
        assert PASSWORD not in text
        assert not has_traceback(text)


def test_refused_connections_leave_no_unseen_error(secured: Ports, made: Certificates, exchange: str) -> None:
    address = parse_url(url(secured["open"], cafile=made.other.file))
    unseen = list[dict[str, Any]]()

    async def tried() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, found: unseen.append(found))
        for _ in range(15):
            with pytest.raises(BrokerRefused, match="not trusted"):
                await open_broker(SessionParameters(address=address, exchange=exchange, timeout=HANGS, takes=True))

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(tried())
        gc.collect()
    assert not unseen


def test_a_server_that_never_answers_the_handshake_is_given_up_in_time(made: Certificates, exchange: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = url(silent.getsockname()[1], cafile=made.ours.file)
        with pytest.raises(BrokerUnavailable, match="in time"):
            asyncio.run(described(address, exchange, timeout=0.5))


def test_a_handshake_that_is_cut_is_tried_again(secured: Ports, made: Certificates, exchange: str) -> None:
    """As by a server that is stopping."""

    def serve() -> None:
        for answered in (0, 1, 300):
            line, _ = server.accept()
            with line, socket.create_connection((WRONG, secured["open"])) as broker:
                broker.sendall(line.recv(65_536))
                line.sendall(broker.recv(65_536)[:answered])

    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as threads:
        serving = threads.submit(serve)
        for _ in range(3):
            with pytest.raises(BrokerUnavailable):
                asyncio.run(described(url(server.getsockname()[1], cafile=made.ours.file), exchange))
        serving.result()


async def described(address: str, exchange: str, *, timeout: float = HANGS) -> str:
    """What the broker at this URL is called, once a session with it is open."""
    broker = await open_broker(SessionParameters(address=parse_url(address), exchange=exchange, timeout=timeout))
    try:
        return broker.describe()
    finally:
        await broker.close()


# -- files that cannot be used ---------------------------------------------------------------------


@pytest.fixture
def folder(made: Certificates, tmp_path: Path) -> Path:
    """Files that are not what a URL may say that they are."""
    encrypted = tmp_path / "encrypted.key"
    openssl("ec", "-in", made.client.key, "-aes128", "-passout", "pass:secret", "-out", encrypted)
    (tmp_path / "both.pem").write_bytes(made.client.file.read_bytes() + made.client.key.read_bytes())
    (tmp_path / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for file in (made.ours.file, made.client.file, made.client.key, made.stranger.key):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("cafile=no-such.pem", "cafile=no-such.pem in the broker URL cannot be used: No such file or directory."),
        ("cafile=", "cafile= in the broker URL cannot be used: "),
        ("cafile=.", "cafile=. in the broker URL cannot be used: Is a directory."),
        ("cafile=client.key", "cafile=client.key .* contains no certificate in PEM format"),
        ("cafile=broken.pem", "cafile=broken.pem .* its certificate cannot be read"),
        ("certfile=no-such.pem&keyfile=client.key", "certfile=no-such.pem .* No such file"),
        ("certfile=client.pem&keyfile=no-such.key", "keyfile=no-such.key .* No such file"),
        ("certfile=client.pem&keyfile=client.pem", "keyfile=client.pem .* contains no private key in PEM format"),
        ("certfile=broken.pem&keyfile=client.key", "its key or certificate cannot be read"),
        ("certfile=client.pem&keyfile=stranger.key", r"private key does not belong to the certificate in client\.pem"),
        ("certfile=client.pem&keyfile=encrypted.key", "keyfile=encrypted.key .* private key is encrypted"),
        ("certfile=client.pem", "certfile=client.pem in the broker URL contains no private key"),
        ("keyfile=client.key", "keyfile= without certfile="),
        ("cafile=ours.pem&cafile=ours.pem", "has the option cafile 2 times"),
        ("cafile=ours.pem&ssl_options={}", "Use only one of the two"),
        ("heartbeat=often", "heartbeat"),
        ("no_such_option=1", "no_such_option"),
    ],
)
def test_an_unusable_file_is_told_and_why(folder: Path, monkeypatch: pytest.MonkeyPatch, query: str, said: str) -> None:
    monkeypatch.chdir(folder)

    with pytest.raises(UrlInvalid, match=said) as raised:
        parameters(f"{url(5671)}?{query}")

    assert PASSWORD not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_for_tls_are_refused_without_tls(folder: Path) -> None:
    with pytest.raises(UrlInvalid, match=r"the broker URL has cafile, but does not use TLS\. Write amqps://"):
        parameters(url(5672, scheme="amqp", cafile=folder / "ours.pem"))


def test_one_file_may_hold_certificate_and_key(folder: Path) -> None:
    assert parameters(url(5671, certfile=folder / "both.pem")).ssl_options is not None


def parameters(address: str) -> object:
    session = SessionParameters(address=parse_url(address), exchange="shop")
    return connection_parameters(session, RIGHT, 5671, "tests", None)
