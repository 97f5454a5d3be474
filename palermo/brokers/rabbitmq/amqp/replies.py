"""RabbitMQ's replies in Palermo's own words: its errors, and its answer about a queue.

No exception of pika and no reply code crosses this adapter.
"""

import re
import ssl
from typing import NamedTuple

from msgspec import Struct
from pika import exceptions

from palermo.brokers.rabbitmq.amqp import tls
from palermo.errors import BrokerError, BrokerRefused, BrokerUnavailable, NotFound, PalermoError

ACCESS_REFUSED = 403
NOT_FOUND = 404
RESOURCE_LOCKED = 405
PRECONDITION_FAILED = 406
NOT_ALLOWED = 530

#: Texts of a 404 and of two 406 that mean "not now": the queue or stream exists, but has no process yet, or none here.
_DOWN = "down or inaccessible"
_NOT_RUNNING = "does not have a running replica on the local node"
_NOT_HERE = "does not have a replica on the local node"

#: The text of a 403 for a queue that has an exclusive consumer.
_IN_USE = "in exclusive use"

#: How RabbitMQ names a queue in its texts.
_QUEUE = re.compile(r"queue '(.+?)' in vhost")

#: The word that every refusal of a virtual host has in its text: other refusals have the same code, 530.
_VHOST = "vhost"

#: How the text ends if the virtual host does not exist.
_NO_VHOST = "not found"

#: How a text with code 530 ends if it says "not now": all connections that a limit allows are open, or the virtual host
#: has no process.
_NOT_NOW = ("is reached", "is down")

#: The reply code and text in the text that pika makes of a connection which RabbitMQ closed: Python's own quotes, which
#: are double ones around a text with quotes in it.
_REPLY = re.compile(r"""ConnectionClosedByBroker: \((\d+)\) (['"])(?:[A-Z_]+ - )?(.*)\2""")


class NotOnThisNode(BrokerUnavailable):
    """A stream has no replica on the node that this session is connected to."""


class QueueInUse(BrokerRefused):
    """Another program has the queue for itself: it consumes from it with `exclusive`, or declared it so."""


def reply_code(error: BaseException) -> int:
    """The AMQP reply code that closed a channel or connection; 0 for other errors."""
    if isinstance(error, exceptions.ChannelClosed | exceptions.ConnectionClosed):
        return int(error.reply_code)
    return 0


def queue_in(error: PalermoError) -> str:
    """The AMQP name of the queue that RabbitMQ's text is about; "" if it names none."""
    found = _QUEUE.search(str(error))
    return found[1] if found else ""


def reply_text(error: BaseException) -> str:
    """The text with which RabbitMQ closed a channel or connection, without the code's name."""
    if isinstance(error, exceptions.ChannelClosed | exceptions.ConnectionClosed):
        return re.sub(r"^[A-Z_]+ - ", "", str(error.reply_text))
    return str(error) or type(error).__name__


def translate(error: BaseException, where: str, *, user: str = "", vhost: str = "/") -> PalermoError:
    """The error as one of Palermo's own.

    `where` is `host:port`. `user` and `vhost` are those of the connection, so that a refusal can name them.
    """
    match error:
        case PalermoError():
            return error
        case exceptions.ProbableAuthenticationError() | exceptions.ProbableAccessDeniedError():
            return _login_ended(str(error), where, user, vhost)
        case exceptions.AuthenticationError():
            return _wrong_password(where, user)
        case exceptions.ConnectionClosedByBroker() if error.reply_code == ACCESS_REFUSED:
            return _wrong_password(where, user)
        case exceptions.ConnectionClosedByBroker() if _refuses_vhost(error.reply_code, reply_text(error)):
            return _wrong_vhost(where, user, vhost, reply_text(error))
        case exceptions.ChannelClosedByBroker() if _is_in_use(error):
            return QueueInUse(
                f"RabbitMQ at {where}: {reply_text(error)}. Another program has this queue for itself. Find it by"
                " `rabbitmqctl list_consumers` or `rabbitmqctl list_queues name owner_pid`, and end it, or have it use"
                " the queue without `exclusive`."
            )
        case exceptions.ChannelClosedByBroker() if error.reply_code == ACCESS_REFUSED:
            return BrokerRefused(
                f"RabbitMQ at {where} does not let user {user!r} do this: {reply_text(error)}."
                " Palermo needs configure, write and read permission on everything whose name begins with that of its"
                " exchange and on the queues of jobs, and write permission on amq.default: rabbitmqctl set_permissions."
                " docs/guides/rabbitmq.md says what a user with fewer permissions sees."
            )
        case exceptions.ChannelClosedByBroker() if _is_down(error):
            return BrokerUnavailable(f"RabbitMQ at {where}: {reply_text(error)}. It may still be starting.")
        case exceptions.ChannelClosedByBroker() if _NOT_HERE in str(error.reply_text):
            return NotOnThisNode(f"RabbitMQ at {where}: {reply_text(error)}. It may come back soon.")
        case exceptions.ChannelClosedByBroker() if error.reply_code == NOT_FOUND:
            return NotFound(f"RabbitMQ at {where}: {reply_text(error)}.")
        case exceptions.ChannelClosedByBroker():
            return BrokerRefused(f"RabbitMQ at {where} refused: {reply_text(error)} (code {error.reply_code}).")
        case exceptions.ConnectionClosedByBroker():
            return BrokerUnavailable(
                f"RabbitMQ at {where} closed the connection: {reply_text(error)} (code {error.reply_code})."
            )
        case exceptions.AMQPHeartbeatTimeout():
            return BrokerUnavailable(f"RabbitMQ at {where} stopped answering: no heartbeat.")
        case exceptions.ConnectionBlockedTimeout():
            return BrokerUnavailable(f"RabbitMQ at {where} blocks publishers: its memory or disk alarm is raised.")
        case exceptions.IncompatibleProtocolError():
            return BrokerUnavailable(
                f"what listens at {where} closed the connection before the login: it is RabbitMQ that is stopping or"
                " starting, or it wants TLS (amqps://) or a client certificate (certfile=, keyfile=), or it does not"
                " speak AMQP 0-9-1 (15672 is the port of RabbitMQ's pages)."
            )
        case TimeoutError():
            return BrokerUnavailable(f"RabbitMQ at {where} did not answer in time.")
        case ssl.SSLError():
            return tls.refusal(error, where)
        case ConnectionRefusedError():
            return BrokerUnavailable(
                f"no RabbitMQ at {where}: connection refused. Is it started? PALERMO_URL names another broker."
            )
        case OSError():
            return BrokerUnavailable(f"no RabbitMQ at {where}: {error.strerror or error}.")
        case exceptions.AMQPConnectionError():
            return BrokerUnavailable(f"the connection to RabbitMQ at {where} was lost: {reply_text(error)}.")
        case exceptions.AMQPError() | exceptions.ChannelError() | exceptions.ReentrancyError():
            return BrokerUnavailable(f"the session with RabbitMQ at {where} broke: {type(error).__name__} {error}.")
        case _:
            return BrokerError(f"RabbitMQ at {where}: {type(error).__name__}: {error}")


def _is_in_use(error: exceptions.ChannelClosedByBroker) -> bool:
    """Whether a queue is exclusive to another consumer or connection: no permission can change that."""
    return error.reply_code == RESOURCE_LOCKED or (
        error.reply_code == ACCESS_REFUSED and _IN_USE in str(error.reply_text)
    )


def _is_down(error: exceptions.ChannelClosedByBroker) -> bool:
    """Whether the queue or stream is there, and has no process that answers."""
    text = str(error.reply_text)
    return (error.reply_code == NOT_FOUND and _DOWN in text) or _NOT_RUNNING in text


def _login_ended(said: str, where: str, user: str, vhost: str) -> PalermoError:
    """What the end of the connection during the login means, of which pika keeps only the text.

    RabbitMQ says that it refuses, with a reply code. It closes without a word, or with another code, as it stops.
    """
    reply = _REPLY.search(said)
    code, text = (int(reply[1]), reply[3]) if reply else (0, "")
    if code == ACCESS_REFUSED:
        return _wrong_password(where, user)
    if _refuses_vhost(code, text):
        return _wrong_vhost(where, user, vhost, text)
    why = f"{text} (code {code})" if code == NOT_ALLOWED else "it may be stopping"
    return BrokerUnavailable(f"RabbitMQ at {where} closed the connection during the login: {why}.")


def _refuses_vhost(code: int, text: str) -> bool:
    """Whether RabbitMQ refuses the virtual host for good."""
    return code == NOT_ALLOWED and _VHOST in text and not text.endswith(_NOT_NOW)


def _wrong_password(where: str, user: str) -> BrokerRefused:
    return BrokerRefused(
        f"RabbitMQ at {where} refused user {user!r}: wrong user name or password"
        " (or guest from another machine, which RabbitMQ forbids)."
    )


def _wrong_vhost(where: str, user: str, vhost: str, said: str) -> BrokerRefused:
    missing = said.endswith(_NO_VHOST)
    why = "it does not exist" if missing else "the user has no permissions there"
    do = f"add_vhost {vhost}" if missing else f"set_permissions -p {vhost} {user} '.*' '.*' '.*'"
    return BrokerRefused(
        f"RabbitMQ at {where} refused virtual host {vhost!r} to user {user!r}: {why}. Correct the URL, or run"
        f" `rabbitmqctl {do}`."
    )


#: What the text of error 406 has if a queue or exchange is there with other arguments, and a pattern for the text.
#: RabbitMQ names the first argument that differs.
_DIFFERS = "inequivalent arg"
_INEQUIVALENT = _DIFFERS + r" '(?P<name>[^']+)'.*received (?P<ours>.+) but current is (?P<theirs>.+)$"


class Probe(NamedTuple):
    """The answer to a passive declare of a queue, which creates nothing."""

    exists: bool
    #: Whether the queue is exclusive to another connection: RabbitMQ tells nothing more about such a queue.
    locked: bool = False
    #: Why there are no counts: the queue does not exist, or it is locked.
    error: PalermoError | None = None
    ready: int = 0
    subscribed: int = 0

    @property
    def messages(self) -> int:
        """How many messages wait in the queue. Raises NotFound if it does not exist, BrokerRefused if it is locked."""
        if self.error is not None:
            raise self.error
        return self.ready

    @property
    def consumers(self) -> int:
        """How many consumers the queue has. Raises the same as `messages`."""
        if self.error is not None:
            raise self.error
        return self.subscribed


class Difference(Struct, frozen=True):
    """How a queue or exchange that exists differs from its declaration: what error 406 says."""

    #: The error's whole text.
    text: str
    #: The first argument that differs, with the value that was declared and the one that is there; "" if RabbitMQ has
    #: cut the text, in which the queue's name comes first.
    argument: str = ""
    ours: str = ""
    theirs: str = ""

    @classmethod
    def parse(cls, text: str) -> "Difference | None":
        """The difference from the text of an error 406; None if that has another reason, such as a limit on queues."""
        found = re.search(_INEQUIVALENT, text)
        if found is None:
            return cls(text) if _DIFFERS in text else None
        return cls(text, found["name"], found["ours"], found["theirs"].split(" (code")[0].rstrip("."))
