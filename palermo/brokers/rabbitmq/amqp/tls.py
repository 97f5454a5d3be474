"""TLS to RabbitMQ: the files that a broker URL names, and the errors of a failed handshake.

`cafile` in the URL's query is a certificate authority to trust instead of the system's; `certfile` and `keyfile` are
the client's own certificate. Each connection reads the files again, so that renewed ones are used.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path

from palermo.errors import BrokerError, BrokerRefused, BrokerUnavailable, UrlInvalid

#: Query parameters that are handled here and not by pika.
FILES = ("cafile", "certfile", "keyfile")

#: Start of a TLS alert record, with which a TLS server answers data that isn't TLS.
_ALERT = b"\x15\x03"

# OpenSSL's numbers for certificate errors (X509_V_ERR_…, x509_vfy.h).
_EXPIRED, _NOT_YET_VALID = 10, 9
_UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21)
_OTHER_HOST = (62, 64)


def client_context(files: Mapping[str, str]) -> ssl.SSLContext:
    """The context for a connection, with the files in the URL.

    Raises UrlInvalid for a missing or invalid file.
    """
    cafile, certfile, keyfile = (files.get(name) for name in FILES)
    if cafile is not None:
        _check(cafile, "cafile", "CERTIFICATE", "certificate")
    try:
        context = ssl.create_default_context(cafile=cafile)
    except ssl.SSLError as error:
        raise _unusable("cafile", cafile, f"its certificate cannot be read ({error.reason or error})") from None
    if certfile is None:
        if keyfile is not None:
            raise UrlInvalid(
                "the broker URL has keyfile= without certfile=. Add certfile= with the path of the key's certificate."
            )
        return context
    _check(certfile, "certfile", "CERTIFICATE", "certificate")
    if keyfile is not None:
        _check(keyfile, "keyfile", "PRIVATE KEY", "private key")
    elif "PRIVATE KEY-----" not in _read(certfile, "certfile"):
        raise UrlInvalid(f"certfile={certfile} in the broker URL contains no private key. Add keyfile= with its path.")
    key, path = ("certfile", certfile) if keyfile is None else ("keyfile", keyfile)

    def refuse() -> str:
        # OpenSSL would prompt for its passphrase on the terminal.
        raise _unusable(key, path, "its private key is encrypted. Give an unencrypted key that only its user can read")

    try:
        context.load_cert_chain(certfile, keyfile, refuse)
    except ssl.SSLError as error:
        if "MISMATCH" in (error.reason or ""):
            raise _unusable(key, path, f"its private key does not belong to the certificate in {certfile}") from None
        raise _unusable(key, path, f"its key or certificate cannot be read ({error.reason or error})") from None
    return context


def _check(path: str, name: str, label: str, what: str) -> None:
    if f"{label}-----" not in _read(path, name):
        raise _unusable(name, path, f"it contains no {what} in PEM format (-----BEGIN {label}-----)")


def _read(path: str, name: str) -> str:
    try:
        return Path(path).read_text(encoding="latin-1")
    except (OSError, ValueError) as error:
        raise _unusable(name, path, getattr(error, "strerror", None) or str(error)) from None


def _unusable(name: str, path: str | None, why: str) -> UrlInvalid:
    return UrlInvalid(f"{name}={path} in the broker URL cannot be used: {why}.")


def is_alert(received: bytes) -> bool:
    """Whether a server answered AMQP's first bytes, sent without TLS, with a TLS alert."""
    return received.startswith(_ALERT)


def only_tls(where: str) -> BrokerRefused:
    """The error for amqp:// to a port that accepts only TLS."""
    return BrokerRefused(
        f"the server at {where} requires TLS. Write amqps:// in the broker URL, or the port without TLS (5672 by"
        " default)."
    )


def refusal(error: ssl.SSLError, where: str) -> BrokerError:
    """The error for a failed handshake, with a remedy. `where` is `host:port`."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return BrokerUnavailable(f"RabbitMQ at {where} closed the connection during the TLS handshake.")
    if isinstance(error, ssl.SSLCertVerificationError):
        return BrokerRefused(f"no TLS connection with RabbitMQ at {where}: {_certificate(error)}")
    return BrokerRefused(f"no TLS connection with RabbitMQ at {where}: {_alert(reason)}")


def _certificate(error: ssl.SSLCertVerificationError) -> str:
    """A description of the error in the server's certificate."""
    code, said = error.verify_code, error.verify_message.rstrip(".")
    if code in _UNKNOWN_AUTHORITY:
        return (
            f"its certificate is from an authority that is not trusted on this machine ({said}). Add the authority's"
            " file to the broker URL, amqps://…?cafile=/path/to/ca.pem, or set SSL_CERT_FILE."
        )
    if code in _OTHER_HOST:
        return (
            f"its certificate is for another host ({said}). Write the host name of the certificate in the broker URL,"
            " or give RabbitMQ a certificate for this name."
        )
    if code == _EXPIRED:
        return "its certificate, or that of its authority, has expired. Renew it on the RabbitMQ server."
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet. Check the clocks of this machine and of the RabbitMQ server."
    return f"its certificate is not accepted: {said}."


def _alert(reason: str) -> str:
    """A description of the server's alert, or of its data that isn't TLS."""
    own = "Name a valid one in the broker URL: amqps://…?certfile=…&keyfile=…"
    if "CERTIFICATE_REQUIRED" in reason:
        return f"it requires a client certificate. {own.replace(' a valid', '')}"
    if "HANDSHAKE_FAILURE" in reason:
        return (
            f"the two sides could not agree on a protocol ({reason}). RabbitMQ may require a client certificate:"
            " amqps://…?certfile=…&keyfile=…."
        )
    if "UNKNOWN_CA" in reason:
        return f"it does not trust the authority of the client certificate. {own}"
    if "CERTIFICATE_EXPIRED" in reason:
        return f"the client certificate has expired. {own}"
    if "ALERT" in reason and "CERTIFICATE" in reason:
        return f"it refuses the client certificate ({reason}). {own}"
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason or "PACKET_LENGTH" in reason:
        return (
            "the server does not use TLS on this port. Write the port with TLS (5671 by default), or amqp:// for a"
            " connection without TLS."
        )
    return f"{reason}."
