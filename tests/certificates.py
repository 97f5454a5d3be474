"""Certificates for tests: an authority of their own, and what it signs. Made by the command `openssl`."""

import itertools
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.debian import NotInstalled

_CONFIG = """
[req]
distinguished_name = name
prompt = no
[name]
CN = unnamed
[authority]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[signed]
basicConstraints = critical, CA:false
keyUsage = critical, digitalSignature
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as files."""

    file: Path
    key: Path


class Authority:
    """A private certificate authority, with its files in `folder`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._serials = itertools.count(1)
        self._config = folder / f"{name}.cnf"
        self._config.write_text(_CONFIG)
        #: The authority's own certificate: what a client trusts.
        self.file = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        files = ("-config", self._config, "-keyout", self._key, "-out", self.file)
        openssl("req", "-x509", *_NEW_KEY, *files, "-days", "7", "-subj", f"/CN={name}", "-extensions", "authority")

    def sign(self, name: str, *, host: str = "", days: int = 7) -> Certificate:
        """A certificate for `host`, or for a client. With 0 days it expires at once; OpenSSL 3.6 makes none of less."""
        made = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.cnf"
        openssl("req", *_NEW_KEY, "-config", self._config, "-keyout", made.key, "-out", request, "-subj", f"/CN={name}")
        extensions.write_text(f"{_CONFIG}{f'subjectAltName = DNS:{host}' if host else ''}\n")
        signer = ("-CA", self.file, "-CAkey", self._key, "-set_serial", str(next(self._serials)), "-days", str(days))
        extended = ("-extfile", extensions, "-extensions", "signed")
        openssl("x509", "-req", "-in", request, "-out", made.file, *signer, *extended)
        return made


def openssl(*arguments: object) -> None:
    """Run the command. Raises NotInstalled if there is none."""
    if shutil.which("openssl") is None:
        raise NotInstalled("the command openssl, which makes certificates: apt-get install openssl.")
    command = ["openssl", *map(str, arguments)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
