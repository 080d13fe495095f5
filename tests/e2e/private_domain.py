"""A domain with a certificate of a private authority, for unmodified clients: they need no change, only this place.

Every name below the domain leads to this machine, by a name server on a loopback address that only the commands made
here ask (in a mount namespace of their own). Needs root, as sandboxes do.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import trustme

DOMAIN = "forkyard.test"

_ADDRESS_QUERY = b"\0\1"
_HERE = b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4\x7f\0\0\1"
"""An answer record: the name of the question, A, IN, no caching, 127.0.0.1."""


class PrivateDomain:
    """Certificate and key in `folder`, and the name server, which runs inside a `with`."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert(f"*.{DOMAIN}")
        self.certificate = folder / "server.pem"
        self.certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        self.key = folder / "server.key"
        self.key.write_bytes(issued.private_key_pem.bytes())
        self.authority = folder / "authority.pem"
        self.authority.write_bytes(authority.cert_pem.bytes())
        self._resolver = folder / "resolv.conf"
        self._thread = threading.Thread(target=self._answer, name="name server")

    def server_env(self) -> dict[str, str]:
        """Settings of a server for this domain."""
        return {
            "FORKYARD_DOMAIN": DOMAIN,
            "FORKYARD_TLS_CERT": str(self.certificate),
            "FORKYARD_TLS_KEY": str(self.key),
        }

    def client_env(self) -> dict[str, str]:
        """What makes Python and Node trust the authority."""
        return {"SSL_CERT_FILE": str(self.authority), "NODE_EXTRA_CA_CERTS": str(self.authority)}

    def command(self, arguments: Sequence[str]) -> list[str]:
        """A command that runs `arguments` where the domain is known."""
        mount = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", mount, str(self._resolver), *arguments]

    def __enter__(self) -> PrivateDomain:
        address = f"127.53.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((address, 53))
        self._resolver.write_text(f"nameserver {address}\n")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.sendto(b"", self._socket.getsockname())  # which ends the thread
        self._thread.join()
        self._socket.close()

    def _answer(self) -> None:
        while True:
            query, asker = self._socket.recvfrom(512)
            if not query:
                return
            self._socket.sendto(_reply(query), asker)


def _reply(query: bytes) -> bytes:
    """127.0.0.1 for the addresses of every name, and nothing else; RFC 1035, one question."""
    end = 12
    while query[end]:
        end += query[end] + 1
    wants_address = query[end + 1 : end + 3] == _ADDRESS_QUERY
    counts = b"\0\1" + (b"\0\1" if wants_address else b"\0\0") + b"\0\0\0\0"
    return query[:2] + b"\x85\x80" + counts + query[12 : end + 5] + (_HERE if wants_address else b"")
