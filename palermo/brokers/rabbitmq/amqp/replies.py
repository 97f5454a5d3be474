"""Translate RabbitMQ's replies: its errors, and its answers about a queue.

No pika exception and no reply code crosses this adapter.
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

#: Parts of the texts of a 404 and of two 406 that mean "not now": the queue or stream exists, but has no process, or
#: none on this node.
_DOWN = "down or inaccessible"
_NOT_RUNNING = "does not have a running replica on the local node"
_NOT_HERE = "does not have a replica on the local node"

#: The text of a 403 for a queue with an exclusive consumer.
_IN_USE = "in exclusive use"

#: The form in which RabbitMQ's texts name a queue.
_QUEUE = re.compile(r"queue '(.+?)' in vhost")

#: A word in every text that refuses a virtual host. Other refusals may have the same code, 530.
_VHOST = "vhost"

#: The end of the text if the virtual host doesn't exist.
_NO_VHOST = "not found"

#: Ends of texts with code 530 that mean "not now": the maximum number of connections is open, or the virtual host has
#: no process.
_NOT_NOW = ("is reached", "is down")

#: The reply code and text in pika's text for a connection that RabbitMQ has closed. Python quotes the inner text with
#: double quotes if it contains single ones.
_REPLY = re.compile(r"""ConnectionClosedByBroker: \((\d+)\) (['"])(?:[A-Z_]+ - )?(.*)\2""")


class NotOnThisNode(BrokerUnavailable):
    """The stream has no replica on the node that this session is connected to."""


class QueueInUse(BrokerRefused):
    """Another program uses the queue exclusively, as its exclusive consumer or by its declaration."""


def reply_code(error: BaseException) -> int:
    """The AMQP reply code that closed a channel or connection; 0 for other errors."""
    if isinstance(error, exceptions.ChannelClosed | exceptions.ConnectionClosed):
        return int(error.reply_code)
    return 0


def queue_in(error: PalermoError) -> str:
    """The AMQP name of the queue in RabbitMQ's text; "" if it contains none."""
    found = _QUEUE.search(str(error))
    return found[1] if found else ""


def reply_text(error: BaseException) -> str:
    """RabbitMQ's text for closing a channel or connection, without the name of the code."""
    if isinstance(error, exceptions.ChannelClosed | exceptions.ConnectionClosed):
        return re.sub(r"^[A-Z_]+ - ", "", str(error.reply_text))
    return str(error) or type(error).__name__


def translate(error: BaseException, where: str, *, user: str = "", vhost: str = "/") -> PalermoError:
    """Convert the error to one of Palermo's.

    `where` is `host:port`. `user` and `vhost` are those of the connection, for the text of a refusal.
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
                f"RabbitMQ at {where}: {reply_text(error)}. Another program uses this queue exclusively. Find it with"
                " `rabbitmqctl list_consumers` or `rabbitmqctl list_queues name owner_pid`, then stop it or let it"
                " use the queue without `exclusive`."
            )
        case exceptions.ChannelClosedByBroker() if error.reply_code == ACCESS_REFUSED:
            return BrokerRefused(
                f"RabbitMQ at {where} does not let user {user!r} do this: {reply_text(error)}."
                " Palermo needs configure, write and read permission on all names that begin with the name of its"
                " exchange and on the queues of jobs, and write permission on amq.default. Grant them with"
                " `rabbitmqctl set_permissions`. docs/guides/rabbitmq.md describes what works with fewer permissions."
            )
        case exceptions.ChannelClosedByBroker() if _is_down(error):
            return BrokerUnavailable(f"RabbitMQ at {where}: {reply_text(error)}. It may still be starting.")
        case exceptions.ChannelClosedByBroker() if _NOT_HERE in str(error.reply_text):
            return NotOnThisNode(f"RabbitMQ at {where}: {reply_text(error)}. Try again later.")
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
                f"the server at {where} closed the connection before the login. RabbitMQ may be starting or stopping,"
                " have given up after ten seconds because this machine or the network is slow, or require TLS (amqps://)"
                " or a client certificate (certfile=, keyfile=). Otherwise it is not an AMQP 0-9-1 server (port 15672"
                " serves RabbitMQ's web pages)."
            )
        case TimeoutError():
            return BrokerUnavailable(f"RabbitMQ at {where} did not answer in time.")
        case ssl.SSLError():
            return tls.refusal(error, where)
        case ConnectionRefusedError():
            return BrokerUnavailable(
                f"no RabbitMQ at {where}: connection refused. Start RabbitMQ, or set PALERMO_URL to another broker."
            )
        case OSError():
            return BrokerUnavailable(f"no RabbitMQ at {where}: {error.strerror or error}.")
        case exceptions.AMQPConnectionError():
            return BrokerUnavailable(f"the connection to RabbitMQ at {where} was lost: {reply_text(error)}.")
        case exceptions.AMQPError() | exceptions.ChannelError() | exceptions.ReentrancyError():
            return BrokerUnavailable(f"the session with RabbitMQ at {where} was lost: {type(error).__name__} {error}.")
        case _:
            return BrokerError(f"RabbitMQ at {where}: {type(error).__name__}: {error}")


def _is_in_use(error: exceptions.ChannelClosedByBroker) -> bool:
    """Whether the queue is exclusive to another consumer or connection, which no permission can change."""
    return error.reply_code == RESOURCE_LOCKED or (
        error.reply_code == ACCESS_REFUSED and _IN_USE in str(error.reply_text)
    )


def _is_down(error: exceptions.ChannelClosedByBroker) -> bool:
    """Whether the queue or stream exists, but no process of it responds."""
    text = str(error.reply_text)
    return (error.reply_code == NOT_FOUND and _DOWN in text) or _NOT_RUNNING in text


def _login_ended(said: str, where: str, user: str, vhost: str) -> PalermoError:
    """The error for a connection that ended during the login; pika keeps only the text.

    A refused login has a reply code. A RabbitMQ that is shutting down sends no text or another code.
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
    """Whether RabbitMQ refuses the virtual host permanently."""
    return code == NOT_ALLOWED and _VHOST in text and not text.endswith(_NOT_NOW)


def _wrong_password(where: str, user: str) -> BrokerRefused:
    return BrokerRefused(
        f"RabbitMQ at {where} refused user {user!r}: wrong user name or password. (RabbitMQ also refuses the user"
        " guest from other machines.)"
    )


def _wrong_vhost(where: str, user: str, vhost: str, said: str) -> BrokerRefused:
    missing = said.endswith(_NO_VHOST)
    why = "it does not exist" if missing else "the user has no permissions there"
    do = f"add_vhost {vhost}" if missing else f"set_permissions -p {vhost} {user} '.*' '.*' '.*'"
    return BrokerRefused(
        f"RabbitMQ at {where} refused virtual host {vhost!r} to user {user!r}: {why}. Correct the URL, or run"
        f" `rabbitmqctl {do}`."
    )


#: Part of error 406 for a queue or exchange that exists with other arguments, and a pattern for the first different
#: argument, which is the only one that RabbitMQ names.
_DIFFERS = "inequivalent arg"
_INEQUIVALENT = _DIFFERS + r" '(?P<name>[^']+)'.*received (?P<ours>.+) but current is (?P<theirs>.+)$"


class Probe(NamedTuple):
    """The answer to a query of a queue (a passive declare, which creates nothing)."""

    exists: bool
    #: Whether the queue is exclusive to another connection. RabbitMQ reveals nothing more about it then.
    locked: bool = False
    #: Why there are no counts, if the queue doesn't exist or is locked.
    error: PalermoError | None = None
    ready: int = 0
    subscribed: int = 0

    @property
    def messages(self) -> int:
        """Number of waiting messages. Raises NotFound if the queue doesn't exist, BrokerRefused if it is locked."""
        if self.error is not None:
            raise self.error
        return self.ready

    @property
    def consumers(self) -> int:
        """Number of the queue's consumers. Raises the same errors as `messages`."""
        if self.error is not None:
            raise self.error
        return self.subscribed


class Difference(Struct, frozen=True):
    """The difference between an existing queue or exchange and its declaration, according to error 406."""

    #: The error's whole text.
    text: str
    #: The first different argument, with the declared and the existing value; "" if RabbitMQ has cut the text because
    #: of a long queue name.
    argument: str = ""
    ours: str = ""
    theirs: str = ""

    @classmethod
    def parse(cls, text: str) -> "Difference | None":
        """The difference in the text of an error 406; None for another reason, such as a limit on queues."""
        found = re.search(_INEQUIVALENT, text)
        if found is None:
            return cls(text) if _DIFFERS in text else None
        return cls(text, found["name"], found["ours"], found["theirs"].split(" (code")[0].rstrip("."))
